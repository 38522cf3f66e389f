// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) of bytes that come in pieces, by OpenSSL's libcrypto: it uses the
// processor's instructions for it, where there are any.
#pragma once

#include <openssl/sha.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace vitrine {

using Sha256Digest = std::array<uint8_t, SHA256_DIGEST_LENGTH>;

/// Copies are cheap: a prefix that many messages share is hashed once.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const uint8_t> bytes);
  /// The object is used up.
  Sha256Digest finish();

 private:
  SHA256_CTX state_;
};

/// Two lower-case hexadecimal digits a byte: how hashes and keys are written.
std::string hex(std::span<const uint8_t> bytes);

}  // namespace vitrine
