// A column group's commitment: a tree over salted rows.
#pragma once

#include <vector>

#include "blake2b.h"

namespace vitrine::audit {

using SaltKey = std::array<uint8_t, 32>;

/// `count` salts of 16 bytes: the ChaCha20 keystream of the group's key. Salt 0 belongs to the
/// stored bytes, salt 1 + r to row r.
void make_salts(const SaltKey& key, size_t count, Bytes& salts);

/// The key of one column group of a page, from the page's secret.
SaltKey derive_salt_key(const std::array<uint8_t, 32>& page_secret, uint8_t group);

/// The root over leaves (32 bytes each, changed in place): four children a node, until one is left.
/// No leaf: the hash of nothing.
Digest merkle_root(Bytes& leaves);

inline constexpr Purpose kLeafPurpose = purpose("vtr/1 leaf");
inline constexpr Purpose kNodePurpose = purpose("vtr/1 node");
inline constexpr Purpose kStoredPurpose = purpose("vtr/1 stored");
inline constexpr Purpose kPagePurpose = purpose("vtr/1 page");

}  // namespace vitrine::audit
