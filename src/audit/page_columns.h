// SPDX-License-Identifier: Apache-2.0
// A column group of a page as it stands in the file: committed to, transposed and compressed.
#pragma once

#include "column_cipher.h"

struct ZSTD_CCtx_s;

namespace vitrine::audit {

/// The rows of a group, row after row.
struct GroupRows {
  Bytes bytes;
  std::vector<uint32_t> lengths;  // kVariableRows: of each row
};

/// What becomes of a group on its way into a page.
struct Treatment {
  const std::vector<bool>* visible = nullptr;  // [rows]: those that may be written; null: all
  const DataKey* data_key = nullptr;           // null: not encrypted
};

/// Turns rows into a block of a page's payload. Keeps its buffers. Not thread-safe.
class ColumnSealer {
 public:
  ColumnSealer();
  ~ColumnSealer();
  ColumnSealer(const ColumnSealer&) = delete;
  ColumnSealer& operator=(const ColumnSealer&) = delete;

  /// Appends the block to `payload`; returns what the page's head says of it.
  GroupSeal seal(const GroupSpec& spec, const GroupRows& rows, uint32_t num_rows,
                 const SaltKey& key, const Treatment& treatment, Bytes& payload);

 private:
  ByteSpan transposed(const GroupSpec& spec, const GroupRows& rows, uint32_t num_rows);

  ZSTD_CCtx_s* compressor_;
  Bytes salts_, leaves_, kept_leaves_, content_, compressed_, encrypted_;
};

/// A group read back and checked against its seal.
struct OpenGroup {
  Encoding encoding = Encoding::kLeftOut;  // as it stands
  bool is_decrypted = false;               // kEncrypted, and there was a key
  SaltKey key{};                           // where the group stands there whole
  GroupRows rows;                          // hidden rows: zeros (kRows) or nothing
  std::vector<bool> visible;               // [rows]; empty: all
  Bytes salts;                             // of the leaves (of hidden rows: zeros)
  Bytes leaves;                            // [rows] digests
  bool is_closed() const { return encoding == Encoding::kEncrypted && !is_decrypted; }
  bool is_readable() const { return encoding != Encoding::kLeftOut && !is_closed(); }
  /// True where rows were left out, some or all.
  bool is_redacted() const { return !is_closed() && (!is_readable() || !visible.empty()); }
  /// Of a group that is readable: the row was not left out.
  bool shows(size_t row) const { return visible.empty() || visible[row]; }
};

/// Reads a block of the payload; `data_key` (or null) opens it where it is encrypted. Throws
/// kBadFile where it does not match `seal`.
void open_group(const GroupSpec& spec, const GroupSeal& seal, uint32_t num_rows,
                const DataKey* data_key, ByteReader& payload, OpenGroup& group);

/// Appends a block in which only rows with visible[row] stand (none: the group is left out).
void append_redacted(const GroupSpec& spec, const OpenGroup& group,
                     const std::vector<bool>& visible, Bytes& payload);

}  // namespace vitrine::audit
