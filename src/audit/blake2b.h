// BLAKE2b-256 (libsodium), of one message or of many of one length: a page has thousands of
// commitments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bytes.h"

namespace vitrine::audit {

inline constexpr size_t kDigestBytes = 32;
inline constexpr size_t kSaltBytes = 16;
using Digest = std::array<uint8_t, kDigestBytes>;

/// What a hash is for: BLAKE2b's personalisation, so that no two uses share a value.
using Purpose = std::array<uint8_t, 16>;
constexpr Purpose purpose(std::string_view name) {
  Purpose padded{};
  for (size_t i = 0; i < name.size() && i < padded.size(); ++i) {
    padded[i] = static_cast<uint8_t>(name[i]);
  }
  return padded;
}

/// BLAKE2b-256 of `first` followed by `second`.
Digest hash(const Purpose& purpose, ByteSpan first, ByteSpan second = {});

/// Two hexadecimal digits a byte: how hashes and keys are written.
std::string hex(ByteSpan bytes);

/// For i < count: digests[32 i] = BLAKE2b-256 of salts[16 i, 16 i + 16) followed by
/// rows[row_bytes i, row_bytes (i + 1)). `salts` null: of the row alone.
void hash_rows(const Purpose& purpose, const uint8_t* salts, const uint8_t* rows, size_t row_bytes,
               size_t count, uint8_t* digests);

}  // namespace vitrine::audit
