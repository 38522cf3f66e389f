// SPDX-License-Identifier: Apache-2.0
#include "page_hash.h"

#include "core/sha256.h"

namespace vitrine::audit {

Digest hash(const Purpose& purpose, ByteSpan first, ByteSpan second) {
  Sha256 message;
  message.update(purpose);
  message.update(first);
  message.update(second);
  return message.finish();
}

void hash_rows(const Purpose& purpose, const uint8_t* salts, const uint8_t* rows, size_t row_bytes,
               size_t count, uint8_t* digests) {
  Sha256 tagged;
  tagged.update(purpose);
  for (size_t i = 0; i < count; ++i) {
    Sha256 message = tagged;
    if (salts != nullptr) message.update({salts + kSaltBytes * i, kSaltBytes});
    message.update({rows + row_bytes * i, row_bytes});
    const Digest digest = message.finish();
    std::memcpy(digests + kDigestBytes * i, digest.data(), kDigestBytes);
  }
}

}  // namespace vitrine::audit
