// SPDX-License-Identifier: Apache-2.0
#include "page_hash.h"

namespace vitrine::audit {

TaggedHash::TaggedHash(const Purpose& purpose) { tag_.update(purpose); }

Digest TaggedHash::of(ByteSpan first, ByteSpan second) {
  message_.restart_from(tag_);
  message_.update(first);
  message_.update(second);
  return message_.finish();
}

Digest hash(const Purpose& purpose, ByteSpan first, ByteSpan second) {
  Sha256 message;
  message.update(purpose);
  message.update(first);
  message.update(second);
  return message.finish();
}

void hash_rows(const Purpose& purpose, const uint8_t* salts, const uint8_t* rows, size_t row_bytes,
               size_t count, uint8_t* digests) {
  TaggedHash tagged(purpose);
  for (size_t i = 0; i < count; ++i) {
    const ByteSpan salt =
        salts == nullptr ? ByteSpan() : ByteSpan(salts + kSaltBytes * i, kSaltBytes);
    const Digest digest = tagged.of(salt, {rows + row_bytes * i, row_bytes});
    std::memcpy(digests + kDigestBytes * i, digest.data(), kDigestBytes);
  }
}

}  // namespace vitrine::audit
