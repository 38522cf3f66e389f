// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) of bytes that come in pieces, by OpenSSL's EVP: it uses the processor's
// instructions for it, where there are any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace vitrine {

using Sha256Digest = std::array<uint8_t, 32>;

/// Throws kInternal where OpenSSL has no memory or no SHA-256.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const uint8_t> bytes);
  /// Uses the object up, until `restart_from`.
  Sha256Digest finish();
  /// Continues from `prefix`, so that what many messages begin with is hashed once.
  void restart_from(const Sha256& prefix);

 private:
  evp_md_ctx_st* context_;
};

/// Two lower-case hexadecimal digits a byte: how hashes and keys are written.
std::string hex(std::span<const uint8_t> bytes);
/// Returns whether a text is 32 bytes as hex() writes them: a SHA-256, or an Ed25519 key.
bool is_hex_of_32_bytes(std::string_view text);

}  // namespace vitrine
