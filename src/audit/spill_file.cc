// SPDX-License-Identifier: Apache-2.0
#include "spill_file.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace vitrine::audit {
namespace {

// What stands before a record's bytes.
struct RecordHead {
  uint64_t size = 0;  // of the record
  uint64_t number = 0;
};
constexpr size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;
static_assert(crypto_aead_xchacha20poly1305_ietf_KEYBYTES == 32);

using Nonce = std::array<unsigned char, crypto_aead_xchacha20poly1305_ietf_NPUBBYTES>;

// No number comes twice under one key.
Nonce nonce_of(uint64_t number) {
  Nonce nonce{};
  std::memcpy(nonce.data(), &number, sizeof number);
  return nonce;
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

SpillFile::SpillFile(std::string folder) : folder_(std::move(folder)) {
  randombytes_buf(key_.data(), key_.size());
}

SpillFile::~SpillFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  sodium_memzero(key_.data(), key_.size());
}

void SpillFile::prepare(size_t max_record_bytes) {
  sealed_.resize(sizeof(RecordHead) + max_record_bytes + kTagBytes);
}

bool SpillFile::write(std::span<const std::byte> record) {
  const std::lock_guard lock(mutex_);
  const size_t size = sizeof(RecordHead) + record.size() + kTagBytes;
  if (size > sealed_.size()) return false;
  if (descriptor_ < 0) {
    std::string name = folder_ + "/.vitrine-spill-XXXXXX";
    descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ < 0) return false;
    ::unlink(name.c_str());
  }
  const RecordHead head{record.size(), num_written_};
  std::memcpy(sealed_.data(), &head, sizeof head);
  crypto_aead_xchacha20poly1305_ietf_encrypt(raw(sealed_.data()) + sizeof head, nullptr,
                                             reinterpret_cast<const unsigned char*>(record.data()),
                                             record.size(), nullptr, 0, nullptr,
                                             nonce_of(head.number).data(), key_.data());
  ++num_written_;
  ssize_t count;
  do {
    count = ::pwrite(descriptor_, sealed_.data(), size, static_cast<off_t>(written_));
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(size)) return false;
  written_ += size;
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
      RecordHead head;
      const bool has_head = ::pread(descriptor_, &head, sizeof head, static_cast<off_t>(read_)) ==
                            static_cast<ssize_t>(sizeof head);
      if (!has_head || head.size > end - read_) {
        read_ = end;  // the rest is gone; the account notices
        break;
      }
      buffer_.resize(head.size + kTagBytes);
      plain_.resize(head.size);
      const ssize_t count = ::pread(descriptor_, buffer_.data(), buffer_.size(),
                                    static_cast<off_t>(read_ + sizeof head));
      read_ += sizeof head + buffer_.size();
      const bool is_whole =
          count == static_cast<ssize_t>(buffer_.size()) &&
          crypto_aead_xchacha20poly1305_ietf_decrypt(
              raw(plain_.data()), nullptr, nullptr, raw(buffer_.data()), buffer_.size(), nullptr, 0,
              nonce_of(head.number).data(), key_.data()) == 0;
      if (is_whole) consume(plain_);
    }
  }
}

}  // namespace vitrine::audit
