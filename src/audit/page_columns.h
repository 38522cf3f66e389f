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
  const std::vector<bool>* visible = nullptr;  // [rows]: the rows that may be written; null: all
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
  Encoding encoding = Encoding::kLeftOut;  // as the group stands in the page
  bool is_decrypted = false;               // it is kEncrypted, and there was a key
  SaltKey key{};                           // valid where the whole group stands there
  GroupRows rows;                          // hidden rows are zeros (kRows) or empty
  std::vector<bool> visible;               // [rows]; empty: all
  Bytes salts;                             // of the leaves; those of hidden rows are zeros
  Bytes leaves;                            // [rows] digests
  bool is_closed() const { return encoding == Encoding::kEncrypted && !is_decrypted; }
  bool is_readable() const { return encoding != Encoding::kLeftOut && !is_closed(); }
  /// Returns true where rows were left out, some or all.
  bool is_redacted() const { return !is_closed() && (!is_readable() || !visible.empty()); }
  /// Returns true where a group that is readable has the row: it was not left out.
  bool shows(size_t row) const { return visible.empty() || visible[row]; }
};

/// Reads a block of the payload; `data_key` (or null) opens it where it is encrypted. Throws
/// kBadFile where it does not match `seal`.
void open_group(const GroupSpec& spec, const GroupSeal& seal, uint32_t num_rows,
                const DataKey* data_key, ByteReader& payload, OpenGroup& group);

/// Appends a block in which only rows with visible[row] stand. Where there are none, the group is
/// left out.
void append_redacted(const GroupSpec& spec, const OpenGroup& group,
                     const std::vector<bool>& visible, Bytes& payload);

}  // namespace vitrine::audit
