// SPDX-License-Identifier: Apache-2.0
#include "page_columns.h"

#include <zstd.h>

#include <algorithm>
#include <new>

namespace vitrine::audit {
namespace {

constexpr int kLevel = 1;  // of zstd: higher ones cost more than they save here

void put_block(Bytes& payload, Encoding encoding, ByteSpan first, ByteSpan second = {}) {
  ByteWriter writer(payload);
  writer.u8(static_cast<uint8_t>(encoding));
  writer.u32(static_cast<uint32_t>(first.size() + second.size()));
  writer.raw(first);
  writer.raw(second);
}

/// [rows][row_bytes] to [row_bytes][rows]: equal bytes of neighbours come together.
void transpose(const uint8_t* from, size_t rows, size_t row_bytes, uint8_t* to) {
  constexpr size_t kTile = 64;
  for (size_t first = 0; first < rows; first += kTile) {
    const size_t end = std::min(rows, first + kTile);
    for (size_t column = 0; column < row_bytes; ++column) {
      uint8_t* out = to + column * rows;
      for (size_t row = first; row < end; ++row) out[row] = from[row * row_bytes + column];
    }
  }
}

size_t num_leaves(const GroupSpec& spec, uint32_t num_rows) {
  return spec.kind == GroupKind::kWhole ? 1 : num_rows;
}

/// The commitments of rows of any kind.
void hash_leaves(const GroupSpec& spec, const GroupRows& rows, uint32_t num_rows,
                 const Bytes& salts, Bytes& leaves) {
  const size_t count = num_leaves(spec, num_rows);
  leaves.resize(count * kDigestBytes);
  const uint8_t* row_salts = salts.data() + kSaltBytes;
  if (spec.kind == GroupKind::kRows) {
    hash_rows(kLeafPurpose, row_salts, rows.bytes.data(), spec.row_bytes, count, leaves.data());
    return;
  }
  TaggedHash tagged(kLeafPurpose);
  ByteSpan left(rows.bytes);
  for (size_t row = 0; row < count; ++row) {
    const size_t length = spec.kind == GroupKind::kWhole ? left.size() : rows.lengths[row];
    const Digest leaf = tagged.of({row_salts + row * kSaltBytes, kSaltBytes}, left.first(length));
    std::memcpy(leaves.data() + row * kDigestBytes, leaf.data(), kDigestBytes);
    left = left.subspan(length);
  }
}

Digest hash_stored(const Bytes& salts, ByteSpan stored) {
  return hash(kStoredPurpose, ByteSpan(salts).first(kSaltBytes), stored);
}

void check_page_bytes(uint64_t bytes, uint32_t num_rows) {
  if (bytes > kMaxPageBytes && num_rows > 1) {
    throw_damaged("has a column group of " + std::to_string(bytes) + " bytes, expected at most " +
                  std::to_string(kMaxPageBytes));
  }
}

void decompress(ByteSpan stored, size_t expected, bool is_size_known, Bytes& content) {
  const unsigned long long size = ZSTD_getFrameContentSize(stored.data(), stored.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN ||
      (is_size_known ? size != expected : size > kMaxPageBytes) ||
      ZSTD_findFrameCompressedSize(stored.data(), stored.size()) != stored.size()) {
    throw_damaged("has a column group that is no zstd frame of the expected size");
  }
  content.resize(size);
  const size_t written = ZSTD_decompress(content.data(), size, stored.data(), stored.size());
  if (ZSTD_isError(written) || written != size) {
    throw_damaged("has a column group that cannot be decompressed");
  }
}

void read_content(const GroupSpec& spec, uint32_t num_rows, Bytes content, GroupRows& rows) {
  switch (spec.kind) {
    case GroupKind::kWhole: rows.bytes = std::move(content); break;
    case GroupKind::kRows:
      rows.bytes.resize(content.size());
      transpose(content.data(), spec.row_bytes, num_rows, rows.bytes.data());
      break;
    case GroupKind::kVariableRows: {
      ByteReader in(content);
      rows.lengths.resize(num_rows);
      size_t total = 0;
      for (uint32_t& length : rows.lengths) {
        length = static_cast<uint32_t>(in.varint(kMaxRowBytes, "a row's length"));
        total += length;
      }
      const ByteSpan bytes = in.raw(total);
      rows.bytes.assign(bytes.begin(), bytes.end());
      in.expect_end("a column group");
    }
  }
}

void read_some_rows(const GroupSpec& spec, uint32_t num_rows, ByteReader in, OpenGroup& group) {
  if (spec.kind == GroupKind::kWhole) throw_damaged("has a redacted column that has no rows");
  const ByteSpan bitmap = in.raw((num_rows + 7) / 8);
  group.visible.resize(num_rows);
  group.salts.assign((num_rows + size_t{1}) * kSaltBytes, 0);
  group.leaves.resize(num_rows * kDigestBytes);
  if (spec.kind == GroupKind::kVariableRows) group.rows.lengths.assign(num_rows, 0);
  TaggedHash tagged(kLeafPurpose);
  size_t num_visible = 0;
  for (uint32_t row = 0; row < num_rows; ++row) {
    group.visible[row] = (bitmap[row / 8] >> (row % 8) & 1) != 0;
    uint8_t* leaf = group.leaves.data() + row * kDigestBytes;
    if (!group.visible[row]) {
      std::memcpy(leaf, in.raw(kDigestBytes).data(), kDigestBytes);
      group.rows.bytes.resize(group.rows.bytes.size() + spec.row_bytes);
      continue;
    }
    ++num_visible;
    const ByteSpan salt = in.raw(kSaltBytes);
    std::memcpy(group.salts.data() + (row + size_t{1}) * kSaltBytes, salt.data(), kSaltBytes);
    const size_t length =
        spec.kind == GroupKind::kRows ? spec.row_bytes : in.varint(kMaxRowBytes, "a row's length");
    const ByteSpan bytes = in.raw(length);
    if (spec.kind == GroupKind::kVariableRows) {
      group.rows.lengths[row] = static_cast<uint32_t>(length);
    }
    ByteWriter(group.rows.bytes).raw(bytes);
    const Digest digest = tagged.of(salt, bytes);
    std::memcpy(leaf, digest.data(), kDigestBytes);
  }
  in.expect_end("a column group");
  if (num_visible == 0 || num_visible == num_rows ||
      (num_rows % 8 != 0 && bitmap.back() >> (num_rows % 8) != 0)) {
    throw_damaged("has a redacted column whose list of rows is not canonical");
  }
}

/// A group that stands there whole: salt key and content. `expected`: the hash of the stored bytes,
/// or null where they have been vouched for.
void read_whole(const GroupSpec& spec, uint32_t num_rows, Encoding encoding, const Digest* expected,
                ByteReader in, OpenGroup& group) {
  if (encoding != Encoding::kRaw && encoding != Encoding::kZstd) {
    throw_damaged("has an encrypted column group in an encoding that is none");
  }
  group.key = in.array<32>();
  make_salts(group.key, 1 + num_leaves(spec, num_rows), group.salts);
  const ByteSpan stored = in.raw(in.left());
  if (expected != nullptr && hash_stored(group.salts, stored) != *expected) {
    throw_damaged("has a column that its seal does not fit");
  }
  const uint64_t size = uint64_t{spec.row_bytes} * num_rows;
  check_page_bytes(size, num_rows);
  const bool is_size_known = spec.kind == GroupKind::kRows;
  Bytes content;
  if (encoding == Encoding::kZstd) {
    decompress(stored, size, is_size_known, content);
  } else if (is_size_known && stored.size() != size) {
    throw_damaged("has a column of " + std::to_string(stored.size()) + " bytes, expected " +
                  std::to_string(size));
  } else {
    content.assign(stored.begin(), stored.end());
  }
  read_content(spec, num_rows, std::move(content), group.rows);
  hash_leaves(spec, group.rows, num_rows, group.salts, group.leaves);
}

/// The rows that may be seen and the commitments of the others. Returns how it is encoded: with
/// nothing to see it is left out.
Encoding encode_some_rows(const GroupSpec& spec, const GroupRows& rows, const Bytes& salts,
                          const Bytes& leaves, const std::vector<bool>& visible, Bytes& block) {
  if (std::find(visible.begin(), visible.end(), true) == visible.end()) return Encoding::kLeftOut;
  block.assign((visible.size() + 7) / 8, 0);
  for (size_t row = 0; row < visible.size(); ++row) {
    if (visible[row]) block[row / 8] |= static_cast<uint8_t>(1 << (row % 8));
  }
  ByteWriter writer(block);
  ByteSpan left(rows.bytes);
  for (size_t row = 0; row < visible.size(); ++row) {
    const size_t length =
        spec.kind == GroupKind::kRows ? spec.row_bytes : size_t{rows.lengths[row]};
    if (visible[row]) {
      writer.raw(ByteSpan(salts).subspan((row + 1) * kSaltBytes, kSaltBytes));
      if (spec.kind == GroupKind::kVariableRows) writer.varint(length);
      writer.raw(left.first(length));
    } else {
      writer.raw(ByteSpan(leaves).subspan(row * kDigestBytes, kDigestBytes));
    }
    left = left.subspan(length);
  }
  return Encoding::kSomeRows;
}

}  // namespace

ColumnSealer::ColumnSealer() : compressor_(ZSTD_createCCtx()) {
  if (compressor_ == nullptr) throw std::bad_alloc();
}
ColumnSealer::~ColumnSealer() { ZSTD_freeCCtx(compressor_); }

ByteSpan ColumnSealer::transposed(const GroupSpec& spec, const GroupRows& rows, uint32_t num_rows) {
  switch (spec.kind) {
    case GroupKind::kWhole: return rows.bytes;
    case GroupKind::kRows:
      content_.resize(rows.bytes.size());
      transpose(rows.bytes.data(), num_rows, spec.row_bytes, content_.data());
      return content_;
    case GroupKind::kVariableRows: break;
  }
  content_.clear();
  ByteWriter writer(content_);
  for (const uint32_t length : rows.lengths) writer.varint(length);
  writer.raw(rows.bytes);
  return content_;
}

GroupSeal ColumnSealer::seal(const GroupSpec& spec, const GroupRows& rows, uint32_t num_rows,
                             const SaltKey& key, const Treatment& treatment, Bytes& payload) {
  make_salts(key, 1 + num_leaves(spec, num_rows), salts_);
  hash_leaves(spec, rows, num_rows, salts_, leaves_);
  if (treatment.visible != nullptr) kept_leaves_ = leaves_;
  GroupSeal seal;
  seal.root = merkle_root(leaves_);
  const ByteSpan content = transposed(spec, rows, num_rows);
  compressed_.resize(ZSTD_compressBound(content.size()));
  const size_t size = ZSTD_compressCCtx(compressor_, compressed_.data(), compressed_.size(),
                                        content.data(), content.size(), kLevel);
  const bool is_smaller = !ZSTD_isError(size) && size < content.size();
  seal.encoding = is_smaller ? Encoding::kZstd : Encoding::kRaw;
  const ByteSpan stored = is_smaller ? ByteSpan(compressed_).first(size) : content;
  seal.stored = hash_stored(salts_, stored);

  Encoding encoding = seal.encoding;
  Bytes some_rows;
  if (treatment.visible != nullptr) {
    encoding = encode_some_rows(spec, rows, salts_, kept_leaves_, *treatment.visible, some_rows);
  }
  const bool is_whole = encoding == seal.encoding;
  const ByteSpan first = is_whole ? ByteSpan(key) : ByteSpan(some_rows);
  const ByteSpan second = is_whole ? stored : ByteSpan();
  if (treatment.data_key == nullptr || encoding == Encoding::kLeftOut) {
    put_block(payload, encoding, first, second);
    return seal;
  }
  encrypt_block(*treatment.data_key, encoding, first, second, encrypted_);
  seal.encoding = Encoding::kEncrypted;
  seal.stored = hash(kStoredPurpose, {}, encrypted_);
  put_block(payload, Encoding::kEncrypted, encrypted_);
  return seal;
}

void open_group(const GroupSpec& spec, const GroupSeal& seal, uint32_t num_rows,
                const DataKey* data_key, ByteReader& payload, OpenGroup& group) {
  group = OpenGroup();
  group.encoding = static_cast<Encoding>(payload.u8(4, "a column group's encoding"));
  ByteReader block(payload.raw(payload.u32()));
  const bool is_as_sealed = group.encoding == seal.encoding;
  if (is_as_sealed && group.encoding == Encoding::kSomeRows) {
    throw_damaged("has a column group that was sealed as redacted");
  }
  switch (group.encoding) {
    case Encoding::kLeftOut: return block.expect_end("a column that was left out");
    case Encoding::kSomeRows: read_some_rows(spec, num_rows, block, group); break;
    case Encoding::kEncrypted: {
      const ByteSpan bytes = block.raw(block.left());
      if (!is_as_sealed || hash(kStoredPurpose, {}, bytes) != seal.stored) {
        throw_damaged("has an encrypted column that its seal does not fit");
      }
      if (data_key == nullptr) return;
      const Bytes plain = decrypt_block(*data_key, bytes);
      group.is_decrypted = true;
      ByteReader in(plain);
      const auto encoding = static_cast<Encoding>(in.u8());
      if (encoding == Encoding::kSomeRows) {
        read_some_rows(spec, num_rows, in, group);
      } else {
        read_whole(spec, num_rows, encoding, nullptr, in, group);
      }
      break;
    }
    case Encoding::kRaw:
    case Encoding::kZstd:
      if (!is_as_sealed) {
        throw_damaged("has a column group in another encoding than the one that was sealed");
      }
      read_whole(spec, num_rows, group.encoding, &seal.stored, block, group);
  }
  Bytes leaves = group.leaves;
  if (merkle_root(leaves) != seal.root) throw_damaged("has rows that their seal does not fit");
}

void append_redacted(const GroupSpec& spec, const OpenGroup& group,
                     const std::vector<bool>& visible, Bytes& payload) {
  Bytes block;
  const Encoding encoding =
      encode_some_rows(spec, group.rows, group.salts, group.leaves, visible, block);
  put_block(payload, encoding, block);
}

}  // namespace vitrine::audit
