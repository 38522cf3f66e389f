// SPDX-License-Identifier: Apache-2.0
// One kept prefix as a file: what it was made with, its tokens, the bytes of its blocks and states,
// and what the recorder said of it.
//
// A file has a prelude, a head in JSON (what made it; readable without a key), a record in JSON
// (tokens and which blocks it has), a BLAKE2b-256 of all that, the content, and a BLAKE2b-256 of
// the first hash and the content. With a key, record and content are each a nonce and what
// XChaCha20-Poly1305 makes of them, bound to all that stands before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/prefix_shape.h"

namespace vitrine::serve {

/// Whether a file fits is decided by these: name, value.
using StoreFields = std::vector<std::pair<std::string, std::string>>;
using StoreKey = std::array<uint8_t, 32>;

/// What a file says of a prefix.
struct StoredRecord {
  kv::PrefixShape shape;    // its adapter is the scope's
  int64_t begin = 0;        // tokens whose whole blocks are the parent's
  std::string parent;       // name of a file that begins with these tokens; empty: there is none
  int64_t token_words = 0;  // of what the recorder said of each token from `begin` on; 0: nothing
};

/// The bytes of the blocks and states, then the words.
struct StoredContent {
  std::vector<std::byte> bytes;
  std::vector<int32_t> words;
};

/// Reads and writes files of one scope: one tenant's, of one adapter.
class PrefixFiles {
 public:
  /// `fields`: what a file must have been made with. `scope`: names the scope in the head.
  PrefixFiles(StoreFields fields, std::string scope, std::optional<StoreKey> key)
      : fields_(std::move(fields)), scope_(std::move(scope)), key_(key) {}

  /// Replaces the file at once or not at all. Throws kIo.
  void write(const std::string& path, const StoredRecord& record, std::span<const std::byte> bytes,
             std::span<const int32_t> words) const;
  /// Returns how many bytes write() will make of so many.
  uint64_t file_bytes(const StoredRecord& record, uint64_t content_bytes) const;
  /// Reads the beginning of a file, which is checked. Throws kIo, and kBadFile with the file, the
  /// field and what was expected.
  StoredRecord read_record(const std::string& path) const;
  /// Reads all of it. `bytes`: how many those of its blocks and states have to be. Throws likewise.
  StoredContent read_content(const std::string& path, const StoredRecord& record,
                             uint64_t bytes) const;

 private:
  struct Opened;
  Opened open(const std::string& path) const;
  std::string head_text() const;

  StoreFields fields_;
  std::string scope_;
  std::optional<StoreKey> key_;
};

}  // namespace vitrine::serve
