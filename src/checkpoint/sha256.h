// Private to the room: SHA-256 with the processor's instructions for it, where it has them.
#pragma once

#include <sodium.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace vitrine::checkpoint {

/// SHA-256 (FIPS 180-4) of bytes that come in pieces.
class Sha256 {
 public:
  /// True where this processor has the instructions (SHA-NI); otherwise libsodium computes it.
  static bool is_accelerated();

  explicit Sha256(bool accelerated = is_accelerated());
  void update(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits; the object is used up.
  std::string finish();

 private:
  static constexpr size_t kBlock = 64;
  void compress(const uint8_t* blocks, size_t count);
  void pad();

  bool accelerated_;
  crypto_hash_sha256_state portable_;
  uint64_t length_ = 0;  // bytes so far
  alignas(16) uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t rest_[kBlock] = {};  // length_ % kBlock bytes of a block that is not whole
};

}  // namespace vitrine::checkpoint
