// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <mutex>
#include <system_error>

#include "vitrine/checkpoint.h"

namespace vitrine {
namespace checkpoint {

/// A mapping as the signal handler sees it: nothing here is freed or locked.
struct Region {
  std::atomic<uintptr_t> begin{0};  // 0: unused
  std::atomic<size_t> size{0};
  std::atomic<bool> is_cut{false};
};

namespace {

constexpr size_t kRegions = 1024;
std::array<Region, kRegions> regions;
std::mutex regions_mutex;  // of who takes and gives back, never of the handler
std::atomic<uintptr_t> page_bytes{4096};

std::mutex guards_mutex;
int guards = 0;
struct sigaction previous_action = {};

Region* take_region(const void* data, size_t size) {
  const std::scoped_lock lock(regions_mutex);
  for (Region& region : regions) {
    if (region.begin.load() != 0) continue;
    region.is_cut.store(false);
    region.size.store(size);
    region.begin.store(reinterpret_cast<uintptr_t>(data));
    return &region;
  }
  return nullptr;
}

/// Zeros in place of what the file no longer has, from the page at fault to the mapping's end.
bool fill_with_zeros(uintptr_t address) {
  for (Region& region : regions) {
    const uintptr_t begin = region.begin.load();
    const size_t size = region.size.load();
    if (begin == 0 || address < begin || address - begin >= size) continue;
    const uintptr_t page = address / page_bytes.load() * page_bytes.load();
    region.is_cut.store(true);
    return mmap(reinterpret_cast<void*>(page), begin + size - page, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (fill_with_zeros(reinterpret_cast<uintptr_t>(info->si_addr))) {
    errno = error;
    return;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) {
    sigaction(signal, &previous_action, nullptr);  // the instruction runs again, and is not caught
  } else {
    previous_action.sa_handler(signal);
  }
}

}  // namespace

MappedFile::MappedFile(const std::string& path, int descriptor, uint64_t size)
    : size_(static_cast<size_t>(size)) {
  void* pages = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  if (pages == MAP_FAILED) {
    throw Error(ErrorKind::kIo,
                path + ": can't be mapped: " + std::generic_category().message(errno));
  }
  data_ = static_cast<const std::byte*>(pages);
  page_bytes.store(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)));
  region_ = take_region(data_, size_);
}

MappedFile::~MappedFile() {
  if (region_ != nullptr) region_->begin.store(0);
  munmap(const_cast<std::byte*>(data_), size_);
}

bool MappedFile::was_cut() const { return region_ != nullptr && region_->is_cut.load(); }

}  // namespace checkpoint

MappedFileGuard::MappedFileGuard() {
  const std::scoped_lock lock(checkpoint::guards_mutex);
  if (checkpoint::guards++ > 0) return;
  struct sigaction action = {};
  action.sa_sigaction = checkpoint::on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &checkpoint::previous_action);
}

MappedFileGuard::~MappedFileGuard() {
  const std::scoped_lock lock(checkpoint::guards_mutex);
  if (--checkpoint::guards == 0) sigaction(SIGBUS, &checkpoint::previous_action, nullptr);
}

}  // namespace vitrine
