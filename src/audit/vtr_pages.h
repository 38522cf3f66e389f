// SPDX-License-Identifier: Apache-2.0
// Goes through a `.vtr` frame by frame: what reading, verification and redaction share.
#pragma once

#include <cstdio>
#include <memory>

#include "page_columns.h"
#include "vtr_rows.h"

namespace vitrine::audit {

struct Frame {
  FrameTag tag = FrameTag::kHead;
  uint64_t offset = 0;  // in the file
  Bytes bytes;          // all of it
  ByteSpan head, signature, payload;
};

/// Reads frames and checks that each one's hash follows from the one before. Errors name the file,
/// the frame and its first byte. Not thread-safe.
class FrameReader {
 public:
  /// Reads magic and head frame.
  explicit FrameReader(const std::string& path);
  ~FrameReader();
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  /// Reads the next page's or the end's frame; returns false where the file ends, also within a
  /// frame (torn_bytes).
  bool next(Frame& frame);
  uint64_t torn_bytes() const { return torn_bytes_; }
  /// Returns the number of the frame that was read last; the head has number 0.
  uint64_t frame_number() const { return num_frames_; }
  uint64_t frame_offset() const { return frame_offset_; }
  bool has_more() const { return offset_ < file_bytes_; }

  const std::string& path() const { return path_; }
  const VtrHeader& header() const { return header_; }
  const std::vector<GroupSpec>& groups() const { return groups_; }
  const Frame& head_frame() const { return head_frame_; }
  /// Returns the chain's hash at the frame that was read last.
  const Digest& chain() const { return chain_; }
  /// Returns `what` with the place before it, unless it names its place itself.
  std::string located(const std::string& what) const;
  [[noreturn]] void fail(const std::string& what, ErrorKind kind = ErrorKind::kBadFile) const;

 private:
  bool read_frame(Frame& frame);
  void read_exactly(uint8_t* to, size_t count);

  /// Throws kUnsupported where a head whose chain is not this version's is an older version's.
  void refuse_older_version(ByteSpan head, const Digest& found) const;

  std::string path_;
  int descriptor_ = -1;
  uint64_t file_bytes_ = 0, offset_ = 0, frame_offset_ = 0, num_frames_ = 0, torn_bytes_ = 0;
  Digest chain_{};
  VtrHeader header_;
  std::vector<GroupSpec> groups_;
  Frame head_frame_;
};

/// A page's frame taken apart and checked against its seals.
struct OpenPage {
  PageHead head;
  std::vector<OpenGroup> groups;  // [header's groups]
  std::vector<IndexRun> runs;
  VtrPage page;
  uint64_t redacted_groups = 0, closed_groups = 0;
};

/// Takes frames apart. Thread-safe.
class PageOpener {
 public:
  /// `keys` open the encrypted groups that are to be read.
  PageOpener(const VtrHeader& header, const std::vector<GroupSpec>& groups, DataKeys keys = {});
  /// Opens a page's groups and reads its events; with `records` also its records. Throws kBadFile
  /// with the reason alone.
  void open(const Frame& frame, bool records, OpenPage& page) const;
  /// Throws where some byte of the page is not what its content's encoding has there. Call it after
  /// open() with records.
  void check_canonical(const Frame& frame, const OpenPage& page) const;

 private:
  void read_records(OpenPage& page) const;
  void read_rows(size_t group, OpenPage& page) const;

  const VtrHeader header_;
  const std::vector<GroupSpec> groups_;
  const DataKeys keys_;
  const RowCodec codec_;
  size_t record_bytes_ = 0;
};

}  // namespace vitrine::audit
