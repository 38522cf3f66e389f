// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>

#include "core/sha256.h"
#include "vitrine/audit_log.h"

namespace vitrine {
namespace {

constexpr std::string_view kSecretLabel = "vitrine-ed25519-secret-1 ";
constexpr std::string_view kPublicLabel = "vitrine-ed25519-public-1 ";
constexpr size_t kHexDigits = 64;

[[noreturn]] void throw_io(const std::string& path, const char* what, int error_number) {
  throw Error(ErrorKind::kIo, "key file '" + path + "': " + what + ": " +
                                  std::generic_category().message(error_number) +
                                  "; choose another place");
}

/// The 32 bytes behind the label. `what` names the kind of key that is expected.
std::array<uint8_t, 32> read_key(const std::string& path, std::string_view label,
                                 const char* what) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) {
    throw Error(ErrorKind::kInvalidArgument,
                "key file '" + path + "' is not there; make one with vitrine audit keygen");
  }
  if (descriptor < 0) throw_io(path, "cannot be opened", errno);
  char text[256];
  size_t size = 0;
  ssize_t count = 0;
  while (size < sizeof text && (count = ::read(descriptor, text + size, sizeof text - size)) > 0) {
    size += static_cast<size_t>(count);
  }
  const int error_number = errno;
  ::close(descriptor);
  if (count < 0) throw_io(path, "cannot be read", error_number);
  std::string_view left(text, size);
  while (!left.empty() && (left.back() == '\n' || left.back() == '\r')) left.remove_suffix(1);
  std::array<uint8_t, 32> key;
  size_t length = 0;
  const bool is_good = left.starts_with(label) && left.size() == label.size() + kHexDigits &&
                       sodium_hex2bin(key.data(), key.size(), left.data() + label.size(),
                                      kHexDigits, nullptr, &length, nullptr) == 0 &&
                       length == key.size();
  const bool is_other = left.starts_with(label == kPublicLabel ? kSecretLabel : kPublicLabel);
  sodium_memzero(text, sizeof text);
  if (!is_good) {
    throw Error(ErrorKind::kBadFile,
                "key file '" + path + "' " +
                    (is_other ? "holds the other half of a key pair" : "is no key of vitrine") +
                    "; expected " + what);
  }
  return key;
}

void write_key(const std::string& path, mode_t mode, std::string_view label,
               std::span<const uint8_t> key) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (descriptor < 0 && errno == EEXIST) {
    throw Error(ErrorKind::kInvalidArgument,
                "key file '" + path + "' is already there; choose another name");
  }
  if (descriptor < 0) throw_io(path, "cannot be made", errno);
  std::string text = std::string(label) + hex(key) + "\n";
  // The umask may have taken rights that the owner needs; a secret never has more than 0600.
  const bool is_written =
      ::fchmod(descriptor, mode) == 0 &&
      ::write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(descriptor) == 0;
  const int error_number = errno;
  sodium_memzero(text.data(), text.size());
  ::close(descriptor);
  if (!is_written) {
    ::unlink(path.c_str());
    throw_io(path, "cannot be written", error_number);
  }
}

/// Warns once for each file.
void warn_of_others(const std::string& path) {
  if (!is_open_to_others(path)) return;
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  if (!warned.insert(path).second) return;
  log_message(LogLevel::kWarning, "key file '" + path +
                                      "' holds a secret key and its permissions let others read "
                                      "it; take them away with chmod 600");
}

void start_sodium() {
  if (sodium_init() < 0) throw Error(ErrorKind::kInternal, "libsodium cannot be initialised");
}

}  // namespace

SealKey SealKey::from_seed(const std::array<uint8_t, 32>& seed) {
  start_sodium();
  SealKey key;
  key.seed_ = seed;
  crypto_sign_seed_keypair(key.public_key_.data(), key.secret_.data(), seed.data());
  return key;
}

SealKey SealKey::generate() {
  start_sodium();
  std::array<uint8_t, 32> seed;
  randombytes_buf(seed.data(), seed.size());
  SealKey key = from_seed(seed);
  sodium_memzero(seed.data(), seed.size());
  return key;
}

SealKey::~SealKey() {
  sodium_memzero(seed_.data(), seed_.size());
  sodium_memzero(secret_.data(), secret_.size());
}

SealKey SealKey::load(const std::string& path) {
  SealKey key =
      from_seed(read_key(path, kSecretLabel, "a secret key as vitrine audit keygen makes it"));
  warn_of_others(path);
  return key;
}

bool is_open_to_others(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         (status.st_mode & (S_IRWXG | S_IRWXO)) != 0;
}

SealKey SealKey::load_or_create(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 || errno != ENOENT) {
    SealKey key = load(path);
    key.require_public_half(path);
    return key;
  }
  const SealKey key = generate();
  key.save(path);
  return key;
}

void SealKey::require_public_half(const std::string& path) const {
  const std::string public_path = path + ".pub";
  struct stat status {};
  if (::stat(public_path.c_str(), &status) != 0 && errno == ENOENT) {
    try {
      write_key(public_path, 0644, kPublicLabel, public_key_);
    } catch (const Error& error) {  // a folder of secrets may be closed for writing
      if (error.kind() != ErrorKind::kIo) throw;
    }
  } else if (!S_ISREG(status.st_mode) || load_public_key(public_path) != public_key_) {
    throw Error(ErrorKind::kInvalidArgument, "key file '" + public_path +
                                                 "' is not the public half of '" + path +
                                                 "'; remove it, and it will be made anew");
  }
}

void SealKey::save(const std::string& path) const {
  const std::string public_path = path + ".pub";
  write_key(path, 0600, kSecretLabel, seed_);
  try {
    write_key(public_path, 0644, kPublicLabel, public_key_);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

std::array<uint8_t, 64> SealKey::sign(std::span<const uint8_t> message) const {
  std::array<uint8_t, 64> signature;
  crypto_sign_detached(signature.data(), nullptr, message.data(), message.size(), secret_.data());
  return signature;
}

bool SealKey::open_box(std::span<const uint8_t> box, std::span<uint8_t> message) const {
  if (box.size() != message.size() + crypto_box_SEALBYTES) return false;
  uint8_t open_key[crypto_box_PUBLICKEYBYTES], secret[crypto_box_SECRETKEYBYTES];
  const bool is_open =
      crypto_sign_ed25519_pk_to_curve25519(open_key, public_key_.data()) == 0 &&
      crypto_sign_ed25519_sk_to_curve25519(secret, secret_.data()) == 0 &&
      crypto_box_seal_open(message.data(), box.data(), box.size(), open_key, secret) == 0;
  sodium_memzero(secret, sizeof secret);
  return is_open;
}

PublicKey load_public_key(const std::string& path) {
  start_sodium();
  return read_key(path, kPublicLabel, "a public key, KEYFILE.pub");
}

std::string public_key_text(const PublicKey& key) { return hex(key); }

}  // namespace vitrine
