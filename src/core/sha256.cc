// SPDX-License-Identifier: Apache-2.0
// The functions without a context on the heap: a page makes thousands of hashes of one block, and
// EVP's set-up takes longer than such a hash. OpenSSL 3 keeps them, for those who ask for 1.1's.
#define OPENSSL_API_COMPAT 0x10101000L

#include "core/sha256.h"

namespace vitrine {

Sha256::Sha256() { SHA256_Init(&state_); }

void Sha256::update(std::span<const uint8_t> bytes) {
  SHA256_Update(&state_, bytes.data(), bytes.size());
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  SHA256_Final(digest.data(), &state_);
  return digest;
}

std::string hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace vitrine
