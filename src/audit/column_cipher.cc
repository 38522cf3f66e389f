// SPDX-License-Identifier: Apache-2.0
#include "column_cipher.h"

#include <sodium.h>

#include <algorithm>

namespace vitrine::audit {
namespace {

constexpr size_t kNonceBytes = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES;
constexpr size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;
static_assert(crypto_box_SEALBYTES + sizeof(DataKey) == sizeof(VtrSealedKeys::Box::sealed));

VtrSealedKeys::Box seal_key(GroupId group, const DataKey& key, const uint8_t* open_key) {
  VtrSealedKeys::Box box{.group = static_cast<uint8_t>(group)};
  crypto_box_seal(box.sealed.data(), key.data(), key.size(), open_key);
  return box;
}

}  // namespace

DataKeys make_data_keys(const std::vector<GroupSpec>& groups) {
  DataKeys keys;
  for (const GroupSpec& group : groups) {
    if (group.id == GroupId::kIndex || group.id == GroupId::kEvents) continue;
    randombytes_buf(keys[group.id].data(), sizeof(DataKey));
  }
  return keys;
}

std::vector<VtrSealedKeys> seal_data_keys(const DataKeys& keys,
                                          const std::vector<VtrRecipient>& recipients) {
  std::vector<VtrSealedKeys> sealed;
  std::vector<GroupId> readable;
  for (const VtrRecipient& recipient : recipients) {
    uint8_t open_key[crypto_box_PUBLICKEYBYTES];
    if (crypto_sign_ed25519_pk_to_curve25519(open_key, recipient.key.data()) != 0) {
      throw Error(ErrorKind::kInvalidArgument,
                  "audit log: the recipient's key " + public_key_text(recipient.key) +
                      " is no Ed25519 key; expected one of vitrine audit keygen");
    }
    const std::vector<GroupId> groups = find_groups(recipient.groups);
    VtrSealedKeys& of = sealed.emplace_back();
    of.recipient = recipient.key;
    for (const auto& [group, key] : keys) {
      if (!groups.empty() && std::find(groups.begin(), groups.end(), group) == groups.end()) {
        continue;
      }
      of.boxes.push_back(seal_key(group, key, open_key));
      readable.push_back(group);
    }
  }
  for (const auto& [group, key] : keys) {
    if (std::find(readable.begin(), readable.end(), group) != readable.end()) continue;
    throw Error(ErrorKind::kInvalidArgument,
                "audit log: nobody could read column group '" + group_name(group) +
                    "'; give it a recipient, or leave the other groups to one");
  }
  return sealed;
}

DataKeys open_data_keys(const VtrHeader& header, const std::optional<SealKey>& reader) {
  DataKeys keys;
  if (!reader || header.sealed_keys.empty()) return keys;
  bool is_recipient = false;
  for (const VtrSealedKeys& of : header.sealed_keys) {
    if (of.recipient != reader->public_key()) continue;
    is_recipient = true;
    for (const VtrSealedKeys::Box& box : of.boxes) {
      if (!reader->open_box(box.sealed, keys[static_cast<GroupId>(box.group)])) {
        throw_damaged("the key of column group '" + group_name(static_cast<GroupId>(box.group)) +
                      "' was not sealed for the recipient that stands beside it");
      }
    }
  }
  if (!is_recipient) {
    throw Error(ErrorKind::kInvalidArgument,
                "the key " + public_key_text(reader->public_key()) + " is none of the " +
                    std::to_string(header.sealed_keys.size()) +
                    " that the log is encrypted for; give the key of a recipient");
  }
  return keys;
}

void encrypt_block(const DataKey& key, Encoding encoding, ByteSpan first, ByteSpan second,
                   Bytes& out) {
  Bytes plain;
  ByteWriter writer(plain);
  writer.u8(static_cast<uint8_t>(encoding));
  writer.raw(first);
  writer.raw(second);
  out.resize(kNonceBytes + plain.size() + kTagBytes);
  randombytes_buf(out.data(), kNonceBytes);
  crypto_aead_xchacha20poly1305_ietf_encrypt(out.data() + kNonceBytes, nullptr, plain.data(),
                                             plain.size(), nullptr, 0, nullptr, out.data(),
                                             key.data());
}

Bytes decrypt_block(const DataKey& key, ByteSpan block) {
  if (block.size() <= kNonceBytes + kTagBytes)
    throw_damaged("has an encrypted column without content");
  const ByteSpan sealed = block.subspan(kNonceBytes);
  Bytes plain(sealed.size() - kTagBytes);
  if (crypto_aead_xchacha20poly1305_ietf_decrypt(plain.data(), nullptr, nullptr, sealed.data(),
                                                 sealed.size(), nullptr, 0, block.data(),
                                                 key.data()) != 0) {
    throw_damaged("has an encrypted column that its key in the head does not open");
  }
  return plain;
}

}  // namespace vitrine::audit
