// SPDX-License-Identifier: Apache-2.0
#include "merkle.h"

#include <sodium.h>

namespace vitrine::audit {

void make_salts(const SaltKey& key, size_t count, Bytes& salts) {
  static constexpr uint8_t kNonce[crypto_stream_chacha20_NONCEBYTES] = {};
  salts.resize(count * kSaltBytes);
  crypto_stream_chacha20(salts.data(), salts.size(), kNonce, key.data());
}

SaltKey derive_salt_key(const std::array<uint8_t, 32>& page_secret, uint8_t group) {
  SaltKey key;
  crypto_kdf_derive_from_key(key.data(), key.size(), group, "vtr/1grp", page_secret.data());
  return key;
}

// A node has many children, which share what its tag and padding add.
constexpr size_t kArity = 16;

Digest merkle_root(Bytes& leaves) {
  constexpr size_t kNodeBytes = kArity * kDigestBytes;
  size_t count = leaves.size() / kDigestBytes;
  if (count == 0) return hash(kNodePurpose, {});
  while (count > 1) {
    const size_t full = count / kArity;
    // Nodes are written in place, over children that were read before, and never over those that
    // are read next.
    hash_rows(kNodePurpose, nullptr, leaves.data(), kNodeBytes, full, leaves.data());
    const size_t rest = count % kArity;
    if (rest > 0) {
      const Digest last =
          hash(kNodePurpose, ByteSpan(leaves).subspan(full * kNodeBytes, rest * kDigestBytes));
      std::memcpy(leaves.data() + full * kDigestBytes, last.data(), kDigestBytes);
    }
    count = full + (rest > 0 ? 1 : 0);
  }
  Digest root;
  std::memcpy(root.data(), leaves.data(), kDigestBytes);
  return root;
}

}  // namespace vitrine::audit
