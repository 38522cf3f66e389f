// SPDX-License-Identifier: Apache-2.0
#include "spill_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace vitrine::audit {

SpillFile::~SpillFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool SpillFile::write(std::span<const std::byte> record) {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) {
    std::string name = folder_ + "/.vitrine-spill-XXXXXX";
    descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ < 0) return false;
    ::unlink(name.c_str());
  }
  uint64_t size = record.size();
  const iovec parts[] = {{&size, sizeof size},
                         {const_cast<std::byte*>(record.data()), record.size()}};
  const auto expected = static_cast<ssize_t>(sizeof size + record.size());
  ssize_t count;
  do {
    count = ::pwritev(descriptor_, parts, 2, static_cast<off_t>(written_));
  } while (count < 0 && errno == EINTR);
  if (count != expected) return false;
  written_ += static_cast<uint64_t>(expected);
  is_active_.store(true, std::memory_order_release);
  return true;
}

void SpillFile::drain(const std::function<void(std::span<const std::byte>)>& consume) {
  while (true) {
    uint64_t end;
    {
      const std::lock_guard lock(mutex_);
      end = written_;
      if (read_ == end) {
        read_ = written_ = 0;
        if (descriptor_ >= 0 && ::ftruncate(descriptor_, 0) != 0) errno = 0;
        is_active_.store(false, std::memory_order_release);
        return;
      }
    }
    while (read_ < end) {
      uint64_t size = 0;
      if (::pread(descriptor_, &size, sizeof size, static_cast<off_t>(read_)) !=
          static_cast<ssize_t>(sizeof size)) {
        read_ = end;  // the rest is gone; the account notices
        break;
      }
      buffer_.resize(size);
      const ssize_t count =
          ::pread(descriptor_, buffer_.data(), size, static_cast<off_t>(read_ + sizeof size));
      read_ += sizeof size + size;
      if (count == static_cast<ssize_t>(size)) consume(buffer_);
    }
  }
}

}  // namespace vitrine::audit
