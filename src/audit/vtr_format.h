// SPDX-License-Identifier: Apache-2.0
// The byte format of `.vtr` (docs/vtr-format.md): frames, heads, and the columns that hold whole
// pages. Parsers throw kBadFile with the reason alone; the reader adds the place.
#pragma once

#include <optional>

#include "expert_uses.h"
#include "merkle.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit {

inline constexpr std::array<uint8_t, 8> kMagic = {0x89, 'V', 'T', 'R', '\r', '\n', 0x1A, '\n'};
inline constexpr uint32_t kFormatVersion = 8;
inline constexpr uint32_t kOldestVersion = 6;  // the oldest that is read
/// The fewest tokens over which counts of experts are told.
inline constexpr int32_t kCounterTokens = 64;
inline constexpr uint32_t kMaxPageRows = 4096;
/// The most bytes of a page's rows, and of its events: a page is closed before they take more.
inline constexpr size_t kMaxPageBytes = size_t{4} << 20;
inline constexpr size_t kMaxRowBytes = size_t{1} << 20;
inline constexpr size_t kMaxTextBytes = 4096;  // of one token's piece
inline constexpr size_t kMaxPageEvents = 65536;

enum class GroupId : uint8_t {
  // Groups with one value a page.
  kIndex = 0,      // sequences and positions of the rows, as runs
  kEvents = 1,     // where positions came from and went
  kCounters = 2,   // uses of each expert, over many tokens
  kFailures = 28,  // of a constraint; logs from before there were any lack it
  kDrafts = 31,    // where the head's section names who guesses
  // Groups with one row a record.
  kTokens = 16,
  kText = 17,
  kPrediction = 18,
  kRouting = 19,
  kNorms = 20,
  kDigests = 21,
  kRouterProbs = 22,
  kAttribution = 23,
  kSampler = 24,
  kHiddenStates = 25,
  kConstraint = 26,
  kFederation = 27,
  kLayerMarks = 29,   // older logs lack it
  kSelection = 30,    // of routers with scores, where the head's section names them
  kExpertNorms = 32,  // of layers with experts, where the head's section names them
};
enum class GroupKind : uint8_t { kWhole, kRows, kVariableRows };
/// Returns true for the groups above; others are of later versions or of hosts.
bool is_known_group(GroupId id);
/// Returns the groups with these names (VtrRedaction has them). Throws kInvalidArgument for another
/// name.
std::vector<GroupId> find_groups(const std::vector<std::string>& names);
/// Returns the groups that a redaction of these names hides: the named ones; with tokens, routing
/// or norms also the layers' marks; with tokens also the digests and the guesses.
std::vector<GroupId> find_hidden_groups(const std::vector<std::string>& names);
/// Returns a group's name, or its number where it has none.
std::string group_name(GroupId id);

struct GroupSpec {
  GroupId id = GroupId::kIndex;
  GroupKind kind = GroupKind::kWhole;
  uint32_t row_bytes = 0;  // kRows only
  bool operator==(const GroupSpec&) const = default;
};

/// How the bytes of a group stand in a page.
enum class Encoding : uint8_t { kLeftOut, kRaw, kZstd, kSomeRows, kEncrypted };

// ---- Frames -----------------------------------------------------------------------------------

enum class FrameTag : uint32_t {  // four letters
  kHead = 0x44414548,             // "HEAD"
  kPage = 0x45474150,             // "PAGE"
  kEnd = 0x20444E45,              // "END "
};
inline constexpr size_t kFrameHeadBytes = 16;
inline constexpr size_t kSignatureBytes = 64;
inline constexpr size_t kSealBytes = kDigestBytes + kSignatureBytes;
inline constexpr size_t kMaxHeadBytes = size_t{4} << 20;
inline constexpr size_t kMaxPayloadBytes = size_t{16} << 20;

struct FrameSizes {
  FrameTag tag;
  uint32_t head_bytes;
  uint64_t payload_bytes;
  uint64_t frame_bytes() const { return kFrameHeadBytes + head_bytes + kSealBytes + payload_bytes; }
};
/// Reads the 16 bytes of a frame's beginning and checks them against the limits.
FrameSizes parse_frame_sizes(ByteSpan bytes);
/// Returns the chain's hash at this frame, of which the frame's seal is a signature.
Digest chain_hash(const Digest& previous, FrameTag tag, ByteSpan head);
/// Returns the bytes that are signed.
Bytes signed_message(const Digest& chain);
/// Appends the frame; `chain` is the previous frame's hash and becomes this one's.
void append_frame(Bytes& out, FrameTag tag, ByteSpan head, ByteSpan payload, const SealKey& key,
                  Digest& chain);

// ---- Heads ------------------------------------------------------------------------------------

void encode_header(const VtrHeader& header, const std::vector<GroupSpec>& groups, Bytes& out);
/// Returns what is said of a log of another version.
std::string version_problem(uint32_t version);
/// Parses a head and checks every size and count; groups that this version does not know are kept.
void parse_header(ByteSpan head, VtrHeader& header, std::vector<GroupSpec>& groups);

struct GroupSeal {
  Encoding encoding = Encoding::kRaw;  // the encoding when it was sealed
  Digest root{};                       // over the rows
  Digest stored{};                     // over the bytes as they were written
};
struct PageHead {
  uint64_t number = 0;
  uint64_t closed_unix_ns = 0;
  uint32_t rows = 0;
  uint64_t passes = 0;
  uint64_t step_ns = 0;
  std::vector<GroupSeal> groups;  // in the header's order
};
void encode_page_head(const PageHead& page, Bytes& out);
PageHead parse_page_head(ByteSpan head, size_t num_groups);

void encode_end(const VtrEnd& end, Bytes& out);
VtrEnd parse_end(ByteSpan head);

// ---- Whole groups -----------------------------------------------------------------------------

/// Rows of one sequence at consecutive positions.
struct IndexRun {
  uint64_t sequence = 0;
  uint64_t first = 0;
  uint32_t count = 0;
};
void encode_index(const std::vector<IndexRun>& runs, Bytes& out);
std::vector<IndexRun> parse_index(ByteSpan bytes, uint32_t rows);

void encode_events(const std::vector<VtrEvent>& events, Bytes& out);
std::vector<VtrEvent> parse_events(ByteSpan bytes, uint32_t rows);

/// Appends the number of tokens and, where there are any, the counts [layers with
/// experts][experts]. Version 6 always has the counts, and them alone.
void encode_counters(uint32_t version, const ExpertUses& uses, Bytes& out);
ExpertUses parse_counters(uint32_t version, ByteSpan bytes,
                          const std::vector<AuditLayout::Layer>& layers);

}  // namespace vitrine::audit
