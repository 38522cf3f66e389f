// SPDX-License-Identifier: Apache-2.0
// A key of an elliptic curve that a test makes, with which it signs what sign_model() never would.
#pragma once

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vitrine::testing_support {

inline std::string base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

inline std::string from_base64(const std::string& text) {
  std::string bytes(text.size(), '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  bytes.resize(static_cast<size_t>(size) - (text.ends_with("==")  ? 2
                                            : text.ends_with('=') ? 1
                                                                  : 0));
  return bytes;
}

class SigningKey {
 public:
  explicit SigningKey(const char* curve = "P-256")
      : SigningKey(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", curve)) {}
  /// A key that is none of an elliptic curve.
  static SigningKey ed25519() { return SigningKey(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519")); }

  /// Writes both halves in PEM, the private one encrypted where there is a passphrase.
  void write(const std::string& private_path, const std::string& public_path,
             const std::string& passphrase = "") const {
    FILE* file = std::fopen(private_path.c_str(), "w");
    PEM_write_PKCS8PrivateKey(file, key_.get(), passphrase.empty() ? nullptr : EVP_aes_256_cbc(),
                              passphrase.data(), static_cast<int>(passphrase.size()), nullptr,
                              nullptr);
    std::fclose(file);
    file = std::fopen(public_path.c_str(), "w");
    PEM_write_PUBKEY(file, key_.get());
    std::fclose(file);
  }

  /// Puts another payload into a bundle, signed with SHA-256.
  void sign_anew(nlohmann::json& bundle, const std::string& payload) const {
    const std::string type = bundle["dsseEnvelope"]["payloadType"];
    const std::string message = "DSSEv1 " + std::to_string(type.size()) + " " + type + " " +
                                std::to_string(payload.size()) + " " + payload;
    const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          EVP_MD_CTX_free);
    std::string signature(256, '\0');
    size_t size = signature.size();
    EVP_DigestSignInit_ex(context.get(), nullptr, "SHA256", nullptr, nullptr, key_.get(), nullptr);
    EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, bytes,
                   message.size());
    signature.resize(size);
    bundle["dsseEnvelope"]["payload"] = base64(payload);
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64(signature);
  }

 private:
  explicit SigningKey(EVP_PKEY* key) : key_(key, EVP_PKEY_free) {}

  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
};

}  // namespace vitrine::testing_support
