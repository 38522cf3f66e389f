// SPDX-License-Identifier: Apache-2.0
// Private to the room: keys of an elliptic curve in PEM, by OpenSSL's EVP.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct evp_pkey_st;  // OpenSSL's EVP_PKEY

namespace vitrine::gates {

/// A private or public key of NIST P-256, P-384 or P-521. Signatures are ECDSA over the SHA-2 of
/// the curve's size (SHA-256, SHA-384, SHA-512), DER-encoded.
class EcKey {
 public:
  /// Reads a private key. Throws kBadFile (naming `path`) for what is none, kInvalidArgument where
  /// the passphrase is missing or wrong, and kIo.
  static EcKey load_private(const std::string& path, const std::string& passphrase);
  /// Reads a public key. Throws kBadFile (naming `path`) for what is none, and kIo.
  static EcKey load_public(const std::string& path);

  const std::string& curve() const { return curve_; }
  /// Returns the SHA-256 of the public key in PEM, in hexadecimal: how a signature names its key.
  std::string hint() const;

  std::vector<uint8_t> sign(std::string_view message) const;
  bool is_signature(std::string_view message, std::span<const uint8_t> signature) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };

  EcKey(evp_pkey_st* key, const std::string& path);
  const char* hash_name() const;

  std::unique_ptr<evp_pkey_st, Free> key_;
  std::string curve_;
};

}  // namespace vitrine::gates
