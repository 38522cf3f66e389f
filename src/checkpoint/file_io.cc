// SPDX-License-Identifier: Apache-2.0
#include "file_io.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "core/sha256.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace checkpoint {
namespace {

[[noreturn]] void throw_io(const std::string& path, const std::string& what, int error) {
  throw Error(ErrorKind::kIo, path + ": " + what + ": " + std::generic_category().message(error));
}

int64_t modification_time(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

void initialise_sodium() {
  if (sodium_init() < 0) throw Error(ErrorKind::kInternal, "libsodium can't be initialised");
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw_io(path_, "can't be opened", errno);
  struct stat status = {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  const int error = errno;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    if (!known) throw_io(path_, "its size can't be found", error);
    throw Error(ErrorKind::kBadFile, path_ + ": is not a regular file; expected one");
  }
  size_ = static_cast<uint64_t>(status.st_size);
  modified_ns_ = modification_time(status);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      modified_ns_(other.modified_ns_),
      map_(std::move(other.map_)) {}

InputFile::~InputFile() {
  map_.reset();
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(descriptor_, out.data() + done, out.size() - done,
                                  static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io(path_, "can't be read", errno);
    if (count == 0) {
      struct stat status = {};
      const bool known = ::fstat(descriptor_, &status) == 0;
      throw Error(ErrorKind::kIo, path_ + ": ends at byte " +
                                      std::to_string(known ? static_cast<uint64_t>(status.st_size)
                                                           : offset + done) +
                                      "; expected at least " + std::to_string(offset + out.size()) +
                                      " bytes (did it change while open?)");
    }
    done += static_cast<size_t>(count);
  }
}

void InputFile::read_ahead(uint64_t offset, uint64_t bytes) const noexcept {
#if defined(POSIX_FADV_WILLNEED)
  (void)::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                        POSIX_FADV_WILLNEED);
#else
  (void)offset;
  (void)bytes;
#endif
}

std::span<const std::byte> InputFile::map() const {
  const std::scoped_lock lock(map_->mutex);
  if (map_->file == nullptr) map_->file = std::make_unique<MappedFile>(path_, descriptor_, size_);
  return map_->file->bytes();
}

void InputFile::check_unchanged() const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) throw_io(path_, "its size can't be found", errno);
  bool was_cut = static_cast<uint64_t>(status.st_size) < size_;
  {
    const std::scoped_lock lock(map_->mutex);
    was_cut |= map_->file != nullptr && map_->file->was_cut();
  }
  if (!was_cut && modification_time(status) == modified_ns_) return;
  throw Error(ErrorKind::kIo,
              path_ +
                  (was_cut ? ": was cut while it was in use, to " + std::to_string(status.st_size) +
                                 " bytes; expected " + std::to_string(size_)
                           : ": was written to while it was in use; expected the file as it "
                             "was opened") +
                  "; load the model again from a file that stays as it is");
}

ReplacementFile::ReplacementFile(std::string path, unsigned mode) : path_(std::move(path)) {
  struct stat status = {};
  if (::stat(path_.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) {  // renaming over a device or a pipe would destroy it
      throw Error(ErrorKind::kIo, path_ + ": is not a regular file; choose another place");
    }
    std::error_code error;  // through a link, so that the link stays one
    const std::filesystem::path target = std::filesystem::canonical(path_, error);
    if (!error) path_ = target.string();
  }
  temporary_path_ = path_ + ".tmp-" + random_suffix();
  descriptor_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (descriptor_ < 0) throw_io(path_, "can't be written", errno);
}

ReplacementFile::~ReplacementFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void ReplacementFile::write(uint64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_io(path_, "can't be written", errno);
    done += static_cast<size_t>(count);
  }
}

void ReplacementFile::commit() {
  if (::fsync(descriptor_) != 0) throw_io(path_, "can't be flushed to disk", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) throw_io(path_, "can't be closed", errno);
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    throw_io(path_, "can't be replaced", errno);
  }
  temporary_path_.clear();
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int folder_descriptor =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor >= 0) {  // the rename itself reaches the disk; some systems can't do this
    ::fsync(folder_descriptor);
    ::close(folder_descriptor);
  }
}

std::string random_suffix() {
  initialise_sodium();
  unsigned char random[8];
  char text[2 * sizeof(random) + 1];
  randombytes_buf(random, sizeof(random));
  sodium_bin2hex(text, sizeof(text), random, sizeof(random));
  return text;
}

bool file_exists(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0;
}

}  // namespace checkpoint

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  checkpoint::ReplacementFile file(path);
  file.write(0, bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text.data(), text.size())));
}

std::string read_text_file(const std::string& path, uint64_t max_bytes) {
  const checkpoint::InputFile file(path);
  if (file.size() > max_bytes) {
    throw Error(ErrorKind::kBadFile, path + ": has " + std::to_string(file.size()) +
                                         " bytes; expected at most " + std::to_string(max_bytes));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

std::string sha256_of_file(const std::string& path) {
  const checkpoint::InputFile file(path);
  Sha256 hash;
  std::vector<std::byte> block(size_t{1} << 20);
  for (uint64_t offset = 0; offset < file.size();) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(block.size(), file.size() - offset));
    const std::span<std::byte> read(block.data(), count);
    file.read(offset, read);
    hash.update({reinterpret_cast<const uint8_t*>(read.data()), read.size()});
    offset += count;
  }
  return hex(hash.finish());
}

std::string sha256_of_text(std::string_view text) {
  Sha256 hash;
  hash.update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return hex(hash.finish());
}

}  // namespace vitrine
