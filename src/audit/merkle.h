// SPDX-License-Identifier: Apache-2.0
// A column group's commitment: a tree over salted rows.
#pragma once

#include <vector>

#include "page_hash.h"

namespace vitrine::audit {

using SaltKey = std::array<uint8_t, 32>;

/// Makes `count` salts of 16 bytes: the ChaCha20 keystream of the group's key. Salt 0 belongs to
/// the stored bytes, salt 1 + r to row r.
void make_salts(const SaltKey& key, size_t count, Bytes& salts);

/// Returns the key of one column group of a page, from the page's secret.
SaltKey derive_salt_key(const std::array<uint8_t, 32>& page_secret, uint8_t group);

/// Returns the root over leaves (32 bytes each, changed in place), with 16 children to a node.
/// Without leaves it is the hash of nothing.
Digest merkle_root(Bytes& leaves);

inline constexpr Purpose kLeafPurpose = purpose("leaf");
inline constexpr Purpose kNodePurpose = purpose("node");
inline constexpr Purpose kStoredPurpose = purpose("stor");
inline constexpr Purpose kPagePurpose = purpose("page");

}  // namespace vitrine::audit
