// SPDX-License-Identifier: Apache-2.0
// Column groups encrypted for those who may read them.
#pragma once

#include <map>

#include "vtr_format.h"

namespace vitrine::audit {

using DataKey = std::array<uint8_t, 32>;
/// The keys of encrypted groups, or of those among them that a reader can open.
using DataKeys = std::map<GroupId, DataKey>;

/// Draws a key for each group that is encrypted: all but those that say which positions there are.
DataKeys make_data_keys(const std::vector<GroupSpec>& groups);

/// Seals the keys for each recipient. Throws kInvalidArgument for a group that nobody could read, a
/// name that is no group's and a key that is no point of the curve.
std::vector<VtrSealedKeys> seal_data_keys(const DataKeys& keys,
                                          const std::vector<VtrRecipient>& recipients);

/// Returns the keys of this log that `reader` can open; none where the log is not encrypted. Throws
/// kInvalidArgument where it is no recipient, kBadFile for a box that it cannot open.
DataKeys open_data_keys(const VtrHeader& header, const std::optional<SealKey>& reader);

/// Appends a block to `out` that holds `encoding` and the bytes `first` and `second`: a nonce and
/// XChaCha20-Poly1305 ciphertext.
void encrypt_block(const DataKey& key, Encoding encoding, ByteSpan first, ByteSpan second,
                   Bytes& out);
/// Returns what a block holds: the encoding's byte, then the bytes. Throws kBadFile.
Bytes decrypt_block(const DataKey& key, ByteSpan block);

}  // namespace vitrine::audit
