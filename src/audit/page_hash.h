// SPDX-License-Identifier: Apache-2.0
// The hash of chains, trees and commitments: SHA-256 behind a tag that says what it is for, of one
// message or of many of one length: a page has thousands of commitments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bytes.h"
#include "core/sha256.h"

namespace vitrine::audit {

inline constexpr size_t kDigestBytes = 32;
inline constexpr size_t kSaltBytes = 16;
using Digest = std::array<uint8_t, kDigestBytes>;

/// What a hash is for: four bytes in front of the message, so that no two uses share a value. They
/// are so few that most rows fit into one block of 64 bytes together with their salt and SHA-256's
/// nine bytes.
using Purpose = std::array<uint8_t, 4>;
constexpr Purpose purpose(const char (&name)[5]) {
  Purpose tag{};
  for (size_t i = 0; i < tag.size(); ++i) tag[i] = static_cast<uint8_t>(name[i]);
  return tag;
}

/// Returns SHA-256 of `purpose`, `first` and `second`, one behind the other.
Digest hash(const Purpose& purpose, ByteSpan first, ByteSpan second = {});

/// Hashes many messages of one purpose.
class TaggedHash {
 public:
  explicit TaggedHash(const Purpose& purpose);
  Digest of(ByteSpan first, ByteSpan second = {});

 private:
  Sha256 tag_, message_;
};

/// For i < count: digests[32 i] = hash(purpose, salts[16 i, 16 i + 16), rows[row_bytes i, row_bytes
/// (i + 1))). Where `salts` is null, the hash is of the row alone.
void hash_rows(const Purpose& purpose, const uint8_t* salts, const uint8_t* rows, size_t row_bytes,
               size_t count, uint8_t* digests);

}  // namespace vitrine::audit
