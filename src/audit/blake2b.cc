#include "blake2b.h"

#include <sodium.h>

#include "vitrine/core.h"

namespace vitrine::audit {
namespace {

constexpr uint8_t kNoSalt[crypto_generichash_blake2b_SALTBYTES] = {};

void begin(crypto_generichash_blake2b_state& state, const Purpose& purpose) {
  static_assert(sizeof(Purpose) == crypto_generichash_blake2b_PERSONALBYTES);
  static const int is_ready = sodium_init();
  if (is_ready < 0) throw Error(ErrorKind::kInternal, "libsodium can't be initialised");
  crypto_generichash_blake2b_init_salt_personal(&state, nullptr, 0, kDigestBytes, kNoSalt,
                                                purpose.data());
}

}  // namespace

Digest hash(const Purpose& purpose, ByteSpan first, ByteSpan second) {
  crypto_generichash_blake2b_state state;
  begin(state, purpose);
  crypto_generichash_blake2b_update(&state, first.data(), first.size());
  crypto_generichash_blake2b_update(&state, second.data(), second.size());
  Digest digest;
  crypto_generichash_blake2b_final(&state, digest.data(), digest.size());
  return digest;
}

std::string hex(ByteSpan bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  text.pop_back();
  return text;
}

void hash_rows(const Purpose& purpose, const uint8_t* salts, const uint8_t* rows, size_t row_bytes,
               size_t count, uint8_t* digests) {
  crypto_generichash_blake2b_state fresh;
  begin(fresh, purpose);
  for (size_t i = 0; i < count; ++i) {
    crypto_generichash_blake2b_state state = fresh;
    if (salts != nullptr) {
      crypto_generichash_blake2b_update(&state, salts + kSaltBytes * i, kSaltBytes);
    }
    crypto_generichash_blake2b_update(&state, rows + row_bytes * i, row_bytes);
    crypto_generichash_blake2b_final(&state, digests + kDigestBytes * i, kDigestBytes);
  }
}

}  // namespace vitrine::audit
