// SPDX-License-Identifier: Apache-2.0
#include "vtr_pages.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "draft_list.h"
#include "failure_list.h"
#include "log_file.h"

namespace vitrine::audit {
namespace {

bool is_row_group(const GroupSpec& spec) { return spec.kind != GroupKind::kWhole; }

// Returns true for groups whose bytes may have any value, or are not of what the page's records
// hold.
bool is_opaque(GroupId id) {
  return id == GroupId::kText || id == GroupId::kDigests || id == GroupId::kLayerMarks;
}

}  // namespace

FrameReader::FrameReader(const std::string& path) : path_(path) {
  // O_NONBLOCK: a named pipe is refused below, and nobody waits for its writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int error_number = errno;
  struct stat status {};
  if (descriptor_ < 0 && error_number == ENOENT) {
    throw Error(ErrorKind::kInvalidArgument,
                "audit log '" + path + "' is not there; expected a .vtr file");
  }
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    throw_log_io(path, "cannot be opened: " + std::generic_category().message(error_number));
  }
  try {
    if (!S_ISREG(status.st_mode)) {
      throw Error(ErrorKind::kBadFile, "audit log '" + path + "': is no regular file");
    }
    file_bytes_ = static_cast<uint64_t>(status.st_size);
    std::array<uint8_t, kMagic.size()> magic{};
    if (file_bytes_ >= magic.size()) read_exactly(magic.data(), magic.size());
    if (magic != kMagic) fail("is no .vtr log: its first 8 bytes are others");
    if (!read_frame(head_frame_)) fail("ends within its head");
    if (head_frame_.tag != FrameTag::kHead) fail("begins with another record than its head");
    try {
      if (!head_frame_.payload.empty()) throw_damaged("the head has a payload");
      parse_header(head_frame_.head, header_, groups_);
    } catch (const Error& error) {
      fail(error.what(), error.kind());
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

FrameReader::~FrameReader() { ::close(descriptor_); }

std::string FrameReader::located(const std::string& what) const {
  if (what.starts_with("audit log '")) return what;
  return "audit log '" + path_ + "', record " + std::to_string(num_frames_) + " at byte " +
         std::to_string(frame_offset_) + ": " + what;
}

void FrameReader::fail(const std::string& what, ErrorKind kind) const {
  throw Error(kind, located(what));
}

void FrameReader::read_exactly(uint8_t* to, size_t count) {
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, to, count, static_cast<off_t>(offset_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_log_io(path_, "cannot be read: " + std::generic_category().message(errno));
    if (got == 0) throw_log_io(path_, "became shorter while it was read");
    to += got;
    count -= static_cast<size_t>(got);
    offset_ += static_cast<uint64_t>(got);
  }
}

bool FrameReader::read_frame(Frame& frame) {
  frame_offset_ = offset_;
  const uint64_t left = file_bytes_ - offset_;
  if (left == 0) return false;
  frame.offset = offset_;
  frame.bytes.resize(kFrameHeadBytes);
  if (left < kFrameHeadBytes) {
    torn_bytes_ = left;
    return false;
  }
  read_exactly(frame.bytes.data(), kFrameHeadBytes);
  FrameSizes sizes{};
  try {
    sizes = parse_frame_sizes(frame.bytes);
  } catch (const Error& error) {
    fail(error.what());
  }
  if (sizes.frame_bytes() > left) {
    torn_bytes_ = left;
    offset_ = file_bytes_;
    return false;
  }
  frame.bytes.resize(sizes.frame_bytes());
  read_exactly(frame.bytes.data() + kFrameHeadBytes, frame.bytes.size() - kFrameHeadBytes);
  frame.tag = sizes.tag;
  ByteReader in(frame.bytes);
  in.raw(kFrameHeadBytes);
  frame.head = in.raw(sizes.head_bytes);
  const Digest found = in.array<kDigestBytes>();
  frame.signature = in.raw(kSignatureBytes);
  frame.payload = in.raw(sizes.payload_bytes);
  const Digest expected = chain_hash(chain_, frame.tag, frame.head);
  if (found != expected) {
    if (frame.tag == FrameTag::kHead) refuse_older_version(frame.head, found);
    fail("does not follow the record before it, or was changed: its hash is another");
  }
  chain_ = expected;
  return true;
}

void FrameReader::refuse_older_version(ByteSpan head, const Digest& found) const {
  if (head.size() < 4) return;
  const uint32_t version = ByteReader(head).u32();
  if (version == 0 || version >= kOldestVersion) return;
  // Up to version 4 the chain was BLAKE2b-256 of the hash before, the tag and the head.
  Bytes content(kDigestBytes);
  ByteWriter(content).u32(static_cast<uint32_t>(FrameTag::kHead));
  ByteWriter(content).raw(head);
  static constexpr uint8_t kPersonal[crypto_generichash_blake2b_PERSONALBYTES + 1] =
      "vtr/1 page\0\0\0\0\0\0";
  Digest older;
  crypto_generichash_blake2b_salt_personal(older.data(), older.size(), content.data(),
                                           content.size(), nullptr, 0, nullptr, kPersonal);
  if (older == found) fail(version_problem(version), ErrorKind::kUnsupported);
}

bool FrameReader::next(Frame& frame) {
  ++num_frames_;
  if (!read_frame(frame)) return false;
  if (frame.tag == FrameTag::kHead) fail("is a second head");
  return true;
}

PageOpener::PageOpener(const VtrHeader& header, const std::vector<GroupSpec>& groups, DataKeys keys)
    : header_(header), groups_(groups), keys_(std::move(keys)), codec_(header) {
  // Every group that this version writes is there, and none of them otherwise than it would be
  // written, since rows are read by the layers' widths; others are carried, and older logs lack new
  // ones.
  for (const GroupSpec& expected : codec_.groups()) {
    const bool is_new = expected.id == GroupId::kFailures || expected.id == GroupId::kLayerMarks;
    const auto has_id = [&](const GroupSpec& spec) { return spec.id == expected.id; };
    if (!is_new && std::none_of(groups.begin(), groups.end(), has_id)) {
      throw_damaged("column group " + std::to_string(static_cast<int>(expected.id)) +
                    " is missing, which the rest of the head asks for");
    }
  }
  const std::vector<GroupSpec>& asked_for = codec_.groups();
  for (const GroupSpec& spec : groups_) {
    if (is_known_group(spec.id) &&
        std::find(asked_for.begin(), asked_for.end(), spec) == asked_for.end()) {
      throw_damaged("column group " + std::to_string(static_cast<int>(spec.id)) +
                    " has another width than the layers ask for, or nothing asks for it");
    }
    record_bytes_ += spec.row_bytes;
  }
}

void PageOpener::open(const Frame& frame, bool records, OpenPage& page) const {
  page = OpenPage();
  page.head = parse_page_head(frame.head, groups_.size());
  const uint32_t num_rows = page.head.rows;
  if (num_rows > 0 && header_.detail == LogDetail::kCounters) {
    throw_damaged("has records at level counters");
  }
  if (num_rows > 1 && num_rows * record_bytes_ > kMaxPageBytes) {
    throw_damaged("has " + std::to_string(num_rows) + " rows of " + std::to_string(record_bytes_) +
                  " bytes, expected fewer in a page");
  }
  ByteReader payload(frame.payload);
  page.groups.resize(groups_.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    OpenGroup& group = page.groups[i];
    const GroupId id = groups_[i].id;
    const auto key = keys_.find(id);
    open_group(groups_[i], page.head.groups[i], num_rows,
               key == keys_.end() ? nullptr : &key->second, payload, group);
    if (group.is_closed()) {
      ++page.closed_groups;
    } else if (group.is_redacted()) {
      ++page.redacted_groups;
    }
    const bool is_account = id == GroupId::kIndex || id == GroupId::kEvents;
    const bool is_clear = group.encoding == Encoding::kRaw || group.encoding == Encoding::kZstd;
    if (is_clear && !is_account && !header_.sealed_keys.empty()) {
      throw_damaged("has column group " + std::to_string(static_cast<int>(id)) +
                    " in the clear, and the log is encrypted");
    }
    const bool is_list = id == GroupId::kFailures || id == GroupId::kDrafts;
    if (!is_account && id != GroupId::kCounters && !is_list) continue;
    if (!group.is_readable()) {
      if (!is_account) continue;
      throw_damaged("lacks the column that says which positions it holds");
    }
    if (id == GroupId::kIndex) page.runs = parse_index(group.rows.bytes, num_rows);
    if (id == GroupId::kEvents) page.page.events = parse_events(group.rows.bytes, num_rows);
    if (id == GroupId::kFailures) page.page.failures = parse_failures(group.rows.bytes);
    if (id == GroupId::kDrafts) page.page.drafts = parse_drafts(group.rows.bytes);
    if (id == GroupId::kCounters) {
      ExpertUses uses = parse_counters(header_.format_version, group.rows.bytes, header_.layers);
      page.page.expert_uses = std::move(uses.by_layer);
      page.page.expert_use_tokens = uses.tokens;
    }
  }
  payload.expect_end("the payload");
  page.page.number = page.head.number;
  page.page.offset = frame.offset;
  page.page.bytes = frame.bytes.size();
  page.page.closed_unix_ns = page.head.closed_unix_ns;
  page.page.passes = page.head.passes;
  page.page.step_ns = page.head.step_ns;
  if (records) read_records(page);
}

void PageOpener::read_records(OpenPage& page) const {
  if (page.runs.empty()) return;
  const TokenRecord blank = codec_.blank();
  std::vector<TokenRecord>& records = page.page.records;
  for (const IndexRun& run : page.runs) {
    for (uint32_t i = 0; i < run.count; ++i) {
      records.push_back(blank);
      records.back().sequence = run.sequence;
      records.back().position = static_cast<int64_t>(run.first + i);
    }
  }
  page.page.digests.assign(records.size(), 0);
  page.page.is_redacted.assign(records.size(), false);
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (is_row_group(groups_[i])) read_rows(i, page);
  }
}

void PageOpener::read_rows(size_t group, OpenPage& page) const {
  const GroupSpec& spec = groups_[group];
  const OpenGroup& rows = page.groups[group];
  const size_t num_rows = page.page.records.size();
  if (spec.id == GroupId::kText && rows.is_readable()) page.page.text.resize(num_rows);
  if (spec.id == GroupId::kLayerMarks && rows.is_readable()) page.page.layer_marks.resize(num_rows);
  ByteSpan left(rows.rows.bytes);
  for (size_t row = 0; row < num_rows; ++row) {
    const bool is_visible = rows.is_readable() && rows.shows(row);
    size_t length = 0;
    if (rows.is_readable()) {
      length = spec.kind == GroupKind::kRows ? spec.row_bytes : rows.rows.lengths[row];
    }
    if (!is_visible) {
      page.page.is_redacted[row] = true;
    } else if (spec.id == GroupId::kText) {
      page.page.text[row].assign(reinterpret_cast<const char*>(left.data()), length);
    } else if (spec.id == GroupId::kDigests) {
      std::memcpy(&page.page.digests[row], left.data(), sizeof page.page.digests[row]);
    } else if (spec.id == GroupId::kLayerMarks) {
      page.page.layer_marks[row].resize(length / sizeof(LayerMark));
      std::memcpy(page.page.layer_marks[row].data(), left.data(), length);
    } else {
      codec_.read(spec.id, left.first(length), page.page.records[row]);
    }
    left = left.subspan(length);
  }
}

void PageOpener::check_canonical(const Frame& frame, const OpenPage& page) const {
  Bytes again;
  encode_page_head(page.head, again);
  if (!std::ranges::equal(again, frame.head)) {
    throw_damaged("has a head that is not canonical");
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupSpec& spec = groups_[i];
    const OpenGroup& group = page.groups[i];
    if (!group.is_readable()) continue;
    again.clear();
    if (spec.id == GroupId::kIndex) {
      encode_index(page.runs, again);
      for (size_t run = 1; run < page.runs.size(); ++run) {
        const IndexRun& before = page.runs[run - 1];
        if (before.sequence == page.runs[run].sequence &&
            before.first + before.count == page.runs[run].first) {
          throw_damaged("has an index whose runs are not the longest");
        }
      }
    } else if (spec.id == GroupId::kEvents) {
      encode_events(page.page.events, again);
    } else if (spec.id == GroupId::kCounters) {
      encode_counters(header_.format_version, {page.page.expert_use_tokens, page.page.expert_uses},
                      again);
    } else if (spec.id == GroupId::kFailures) {
      encode_failures(page.page.failures, again);
    } else if (spec.id == GroupId::kDrafts) {
      encode_drafts(page.page.drafts, again);
    } else if (is_known_group(spec.id) && !is_opaque(spec.id)) {
      for (size_t row = 0; row < page.page.records.size(); ++row) {
        if (group.shows(row)) {
          codec_.write(spec.id, page.page.records[row], again);
        } else {
          again.resize(again.size() + spec.row_bytes);
        }
      }
    } else {
      continue;  // opaque bytes: their commitment is all there is
    }
    if (again != group.rows.bytes) {
      throw_damaged("has values in column group " + std::to_string(static_cast<int>(spec.id)) +
                    " that are not encoded as this version encodes them");
    }
  }
}

}  // namespace vitrine::audit
