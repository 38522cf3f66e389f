// SPDX-License-Identifier: Apache-2.0
#include "ec_key.h"

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "core/json_text.h"
#include "core/sha256.h"
#include "vitrine/audit_log.h"
#include "vitrine/checkpoint.h"

namespace vitrine::gates {

namespace {

constexpr uint64_t kMaxKeyBytes = 64 << 10;
constexpr char kPrivateForm[] =
    "a private key in PEM on the curve P-256, P-384 or P-521, as openssl ecparam -name prime256v1 "
    "-genkey -noout makes it";
constexpr char kPublicForm[] =
    "a public key in PEM on the curve P-256, P-384 or P-521, as openssl ec -in KEY -pubout makes "
    "it";

struct Curve {
  const char* name;
  const char* hash;
};
constexpr std::array kCurves{Curve{"prime256v1", "SHA256"}, Curve{"secp384r1", "SHA384"},
                             Curve{"secp521r1", "SHA512"}};

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

/// A key file's text, which is wiped when it goes.
class KeyText {
 public:
  explicit KeyText(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error) && !error) {
      throw Error(ErrorKind::kInvalidArgument,
                  "key file " + quote_text(path) + " is not there; expected a key in PEM");
    }
    text_ = read_text_file(path, kMaxKeyBytes);
  }
  ~KeyText() { OPENSSL_cleanse(text_.data(), text_.size()); }
  KeyText(const KeyText&) = delete;
  KeyText& operator=(const KeyText&) = delete;

  Bio bio() const {
    return {BIO_new_mem_buf(text_.data(), static_cast<int>(text_.size())), BIO_free};
  }
  bool has(std::string_view part) const { return text_.find(part) != std::string::npos; }

 private:
  std::string text_;
};

/// What OpenSSL asks for where a key is encrypted.
struct Passphrase {
  const std::string& text;
  bool is_asked = false;
};

int give_passphrase(char* out, int size, int /*is_writing*/, void* data) {
  auto& passphrase = *static_cast<Passphrase*>(data);
  passphrase.is_asked = true;
  if (passphrase.text.empty() || passphrase.text.size() > static_cast<size_t>(size)) return -1;
  std::ranges::copy(passphrase.text, out);
  return static_cast<int>(passphrase.text.size());
}

[[noreturn]] void refuse(const std::string& path, const std::string& what,
                         const std::string& expected) {
  ERR_clear_error();
  throw Error(ErrorKind::kBadFile,
              "key file " + quote_text(path) + " " + what + "; expected " + expected);
}

[[noreturn]] void throw_internal() {
  ERR_clear_error();
  throw Error(ErrorKind::kInternal,
              "OpenSSL could not use an elliptic curve's key; check its configuration and the free "
              "memory");
}

}  // namespace

void EcKey::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

EcKey::EcKey(evp_pkey_st* key, const std::string& path) : key_(key) {
  char name[64];
  size_t size = 0;
  const std::string expected = "one on the curve P-256, P-384 or P-521, by its name";
  if (EVP_PKEY_is_a(key, "EC") != 1) {
    const char* type = EVP_PKEY_get0_type_name(key);
    refuse(path, std::string("holds a key of the type ") + (type != nullptr ? type : "unknown"),
           expected);
  }
  if (EVP_PKEY_get_group_name(key, name, sizeof name, &size) != 1) {
    refuse(path, "holds a key on a curve without a name", expected);
  }
  curve_.assign(name, size);
  if (std::ranges::find(kCurves, curve_, &Curve::name) == kCurves.end()) {
    refuse(path, "holds a key on the curve " + quote_text(curve_), expected);
  }
}

EcKey EcKey::load_private(const std::string& path, const std::string& passphrase) {
  const KeyText text(path);
  const Bio bio = text.bio();
  Passphrase asked{passphrase};
  evp_pkey_st* key = bio != nullptr
                         ? PEM_read_bio_PrivateKey(bio.get(), nullptr, give_passphrase, &asked)
                         : nullptr;
  if (key == nullptr && asked.is_asked) {
    ERR_clear_error();
    throw Error(ErrorKind::kInvalidArgument, "key file " + quote_text(path) +
                                                 " is encrypted; expected its passphrase" +
                                                 (passphrase.empty() ? "" : ", not another one"));
  }
  if (key == nullptr) {
    const bool is_public = text.has("-----BEGIN PUBLIC KEY-----");
    refuse(path, is_public ? "holds a public key" : "holds no private key", kPrivateForm);
  }
  EcKey loaded(key, path);
  if (is_open_to_others(path)) {
    log_message(LogLevel::kWarning, "key file " + quote_text(path) +
                                        " holds a private key and its permissions let others read "
                                        "it; take them away with chmod 600");
  }
  return loaded;
}

EcKey EcKey::load_public(const std::string& path) {
  const KeyText text(path);
  const Bio bio = text.bio();
  evp_pkey_st* key =
      bio != nullptr ? PEM_read_bio_PUBKEY(bio.get(), nullptr, nullptr, nullptr) : nullptr;
  if (key == nullptr) {
    const bool is_private = text.has("PRIVATE KEY-----");
    refuse(path, is_private ? "holds a private key" : "holds no public key", kPublicForm);
  }
  return {key, path};
}

const char* EcKey::hash_name() const {
  return std::ranges::find(kCurves, curve_, &Curve::name)->hash;
}

std::string EcKey::hint() const {
  // One key has several forms in PEM, of which the one with the whole point is hashed.
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (bio == nullptr ||
      EVP_PKEY_set_utf8_string_param(key_.get(), OSSL_PKEY_PARAM_EC_POINT_CONVERSION_FORMAT,
                                     OSSL_PKEY_EC_POINT_CONVERSION_FORMAT_UNCOMPRESSED) != 1 ||
      PEM_write_bio_PUBKEY(bio.get(), key_.get()) != 1) {
    throw_internal();
  }
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  Sha256 hash;
  hash.update({reinterpret_cast<const uint8_t*>(text), static_cast<size_t>(size)});
  return hex(hash.finish());
}

std::vector<uint8_t> EcKey::sign(std::string_view message) const {
  const DigestContext context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
  size_t size = 0;
  if (context == nullptr ||
      EVP_DigestSignInit_ex(context.get(), nullptr, hash_name(), nullptr, nullptr, key_.get(),
                            nullptr) != 1 ||
      EVP_DigestSign(context.get(), nullptr, &size, bytes, message.size()) != 1) {
    throw_internal();
  }
  std::vector<uint8_t> signature(size);
  if (EVP_DigestSign(context.get(), signature.data(), &size, bytes, message.size()) != 1) {
    throw_internal();
  }
  signature.resize(size);
  return signature;
}

bool EcKey::is_signature(std::string_view message, std::span<const uint8_t> signature) const {
  const DigestContext context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  if (context == nullptr || EVP_DigestVerifyInit_ex(context.get(), nullptr, hash_name(), nullptr,
                                                    nullptr, key_.get(), nullptr) != 1) {
    throw_internal();
  }
  const bool is_good =
      EVP_DigestVerify(context.get(), signature.data(), signature.size(),
                       reinterpret_cast<const uint8_t*>(message.data()), message.size()) == 1;
  ERR_clear_error();  // bytes that are no signature leave some
  return is_good;
}

}  // namespace vitrine::gates
