// SPDX-License-Identifier: Apache-2.0
#include "core/sha256.h"

#include <openssl/evp.h>

#include "vitrine/core.h"

namespace vitrine {

namespace {

/// OpenSSL's own SHA-256, looked up once: to look it up takes longer than a short message's hash.
/// It is never freed, for a log's last page may be hashed while static objects are destroyed.
const EVP_MD* algorithm() {
  static const EVP_MD* const fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return fetched;
}

void require(bool is_done) {
  if (is_done) return;
  throw Error(ErrorKind::kInternal,
              "OpenSSL could not compute a SHA-256; check its configuration and the free memory");
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  const bool is_ready = context_ != nullptr && algorithm() != nullptr &&
                        EVP_DigestInit_ex2(context_, algorithm(), nullptr) == 1;
  if (!is_ready) EVP_MD_CTX_free(context_);
  require(is_ready);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::update(std::span<const uint8_t> bytes) {
  require(EVP_DigestUpdate(context_, bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  require(EVP_DigestFinal_ex(context_, digest.data(), nullptr) == 1);
  return digest;
}

void Sha256::restart_from(const Sha256& prefix) {
  require(EVP_MD_CTX_copy_ex(context_, prefix.context_) == 1);
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

bool is_hex_of_32_bytes(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace vitrine
