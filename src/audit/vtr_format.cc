// SPDX-License-Identifier: Apache-2.0
#include "vtr_format.h"

#include "decode.h"
#include "federation_rows.h"
#include "head_sections.h"

namespace vitrine::audit {
namespace {

constexpr uint64_t kMaxPosition = uint64_t{1} << 62;
constexpr std::string_view kSignPurpose("vtr/1 seal\0\0\0\0\0\0", 16);

constexpr std::pair<std::string_view, GroupId> kGroupNames[] = {
    {"tokens", GroupId::kTokens},
    {"text", GroupId::kText},
    {"prediction", GroupId::kPrediction},
    {"routing", GroupId::kRouting},
    {"routing", GroupId::kSelection},
    {"norms", GroupId::kNorms},
    {"norms", GroupId::kExpertNorms},
    {"digests", GroupId::kDigests},
    {"digests", GroupId::kLayerMarks},
    {"router_probs", GroupId::kRouterProbs},
    {"attribution", GroupId::kAttribution},
    {"sampler", GroupId::kSampler},
    {"hidden_states", GroupId::kHiddenStates},
    {"constraint", GroupId::kConstraint},
    {"federation", GroupId::kFederation},
    {"failures", GroupId::kFailures},
    {"drafts", GroupId::kDrafts},
    {"counters", GroupId::kCounters}};

void put_log(ByteWriter& out, const LogHeader& log) {
  for (const std::string* text :
       {&log.model_path, &log.architecture, &log.device, &log.kernels, &log.isa}) {
    out.string(*text);
  }
  out.u32(static_cast<uint32_t>(log.threads));
  out.u32(static_cast<uint32_t>(log.num_layers));
  out.u32(static_cast<uint32_t>(log.vocab_size));
  out.u64(log.seed);
  put_pairs(out, log.engine);
  put_pairs(out, log.sampler);
  put_pairs(out, log.hashes);
}

LogHeader get_log(ByteReader& in) {
  LogHeader log;
  for (std::string* text :
       {&log.model_path, &log.architecture, &log.device, &log.kernels, &log.isa}) {
    *text = in.string(kMaxText, "a text of the head");
  }
  log.threads = static_cast<int32_t>(in.u32());
  log.num_layers = static_cast<int32_t>(in.u32());
  log.vocab_size = static_cast<int32_t>(in.u32());
  log.seed = in.u64();
  log.engine = get_pairs(in, "the engine's options");
  log.sampler = get_pairs(in, "the sampler's options");
  log.hashes = get_pairs(in, "the files' hashes");
  return log;
}

// Behind the layers' numbers come those of what leaves each specialist's last layer, and the
// base's.
constexpr uint64_t kMaxLeavingStates = 65;

void check_leaving_states(const VtrHeader& header) {
  const size_t most = header.layers.size() + header.federation.specialists.size();
  for (const int32_t layer : header.hidden_state_layers) {
    if (static_cast<size_t>(layer) > most) throw_damaged("has a hidden state of no layer");
  }
}

void get_hidden_states(ByteReader& in, VtrHeader& header) {
  const uint64_t most_layers = header.layers.size() + kMaxLeavingStates;
  header.hidden_state_layers.resize(in.varint(most_layers, "the number of hidden states"));
  int32_t previous = -1;
  for (int32_t& layer : header.hidden_state_layers) {
    layer = static_cast<int32_t>(in.varint(most_layers, "a hidden state's layer"));
    if (layer <= previous) throw_damaged("has hidden states' layers out of order");
    previous = layer;
  }
  const size_t count = header.hidden_state_layers.size();
  const size_t most = count == 0 ? 0 : kMaxRowBytes / (sizeof(float) * count);
  header.hidden_size = static_cast<int32_t>(in.varint(most, "a hidden state's size"));
  if ((count > 0) != (header.hidden_size > 0)) throw_damaged("has hidden states without values");
  if (count > 0 && header.detail != LogDetail::kFull) {
    throw_damaged("has hidden states at level " + std::string(log_detail_name(header.detail)));
  }
}

int64_t unzigzag(uint64_t value) { return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1)); }

/// What a kind of event does not use is 0, and what stands for positions stands for some.
bool is_plain_event(const VtrEvent& event) {
  using Kind = VtrEvent::Kind;
  const bool is_run = event.kind == Kind::kReplayed || event.kind == Kind::kCounted ||
                      event.kind == Kind::kLost || event.kind == Kind::kCopied;
  const bool has_source =
      event.kind == Kind::kForked || event.kind == Kind::kReplayed || event.kind == Kind::kCopied;
  const bool has_first = is_run || event.kind == Kind::kTruncated || event.kind == Kind::kReleased;
  const bool has_count = is_run || event.kind == Kind::kForked;
  return (has_source || event.source == 0) && (has_first || event.first == 0) &&
         (has_count || event.count == 0) && (!is_run || event.count > 0) &&
         (event.kind == Kind::kLost || event.reason == LostReason{});
}

}  // namespace

std::vector<GroupId> find_groups(const std::vector<std::string>& names) {
  std::vector<GroupId> ids;
  for (const std::string& name : names) {
    std::string known;
    const size_t before = ids.size();
    for (const auto& [text, id] : kGroupNames) {
      if (text == name) ids.push_back(id);
      if (!known.ends_with(text)) known += (known.empty() ? "" : ", ") + std::string(text);
    }
    if (ids.size() == before) {
      throw Error(ErrorKind::kInvalidArgument,
                  "audit log: '" + name + "' is no column group; expected some of " + known);
    }
  }
  return ids;
}

std::vector<GroupId> find_hidden_groups(const std::vector<std::string>& names) {
  std::vector<GroupId> ids = find_groups(names);
  const auto has = [&ids](GroupId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  // A digest is over the token's id and values that others show, so a guess can be checked by it.
  if (has(GroupId::kTokens)) ids.push_back(GroupId::kDigests);
  // Guesses that were right are the tokens themselves.
  if (has(GroupId::kTokens)) ids.push_back(GroupId::kDrafts);
  if (has(GroupId::kTokens) || has(GroupId::kRouting) || has(GroupId::kNorms)) {
    ids.push_back(GroupId::kLayerMarks);
  }
  return ids;
}

bool is_known_group(GroupId id) {
  const bool is_named = std::any_of(std::begin(kGroupNames), std::end(kGroupNames),
                                    [id](const auto& name) { return name.second == id; });
  return is_named || id == GroupId::kIndex || id == GroupId::kEvents;
}

std::string group_name(GroupId id) {
  for (const auto& [text, known] : kGroupNames) {
    if (known == id) return std::string(text);
  }
  return std::to_string(static_cast<int>(id));
}

FrameSizes parse_frame_sizes(ByteSpan bytes) {
  ByteReader in(bytes);
  const FrameSizes sizes{static_cast<FrameTag>(in.u32()), in.u32(), in.u64()};
  if (sizes.tag != FrameTag::kHead && sizes.tag != FrameTag::kPage && sizes.tag != FrameTag::kEnd) {
    throw_damaged("begins with none of HEAD, PAGE and END");
  }
  if (sizes.head_bytes > kMaxHeadBytes || sizes.payload_bytes > kMaxPayloadBytes) {
    throw_damaged("claims a head of " + std::to_string(sizes.head_bytes) + " and a payload of " +
                  std::to_string(sizes.payload_bytes) + " bytes, expected at most " +
                  std::to_string(kMaxHeadBytes) + " and " + std::to_string(kMaxPayloadBytes));
  }
  return sizes;
}

Digest chain_hash(const Digest& previous, FrameTag tag, ByteSpan head) {
  Bytes first;
  ByteWriter(first).raw(previous);
  ByteWriter(first).u32(static_cast<uint32_t>(tag));
  return hash(kPagePurpose, first, head);
}

Bytes signed_message(const Digest& chain) {
  Bytes message;
  ByteWriter(message).raw(bytes_of(kSignPurpose));
  ByteWriter(message).raw(chain);
  return message;
}

void append_frame(Bytes& out, FrameTag tag, ByteSpan head, ByteSpan payload, const SealKey& key,
                  Digest& chain) {
  ByteWriter writer(out);
  writer.u32(static_cast<uint32_t>(tag));
  writer.u32(static_cast<uint32_t>(head.size()));
  writer.u64(payload.size());
  writer.raw(head);
  chain = chain_hash(chain, tag, head);
  writer.raw(chain);
  writer.raw(key.sign(signed_message(chain)));
  writer.raw(payload);
}

void encode_header(const VtrHeader& header, const std::vector<GroupSpec>& groups, Bytes& out) {
  ByteWriter writer(out);
  writer.u32(header.format_version);
  writer.raw(header.log_id);
  writer.u64(header.started_unix_ns);
  writer.raw(header.public_key);
  writer.u8(header.is_key_ephemeral);
  writer.u8(static_cast<uint8_t>(header.detail));
  writer.u8(static_cast<uint8_t>(header.mode));
  writer.u8(header.has_text);
  writer.string(header.engine_build);
  writer.string(header.trace_id);
  const bool is_old = header.format_version == kOldestVersion;
  if (!is_old) {
    writer.u64(header.started_monotonic_ns);
    writer.string(header.log.host_name);
    writer.varint(static_cast<uint64_t>(header.counter_tokens));
  }
  put_log(writer, header.log);
  writer.varint(header.layers.size());
  for (const AuditLayout::Layer& layer : header.layers) {
    writer.varint(static_cast<uint64_t>(layer.layer));
    writer.varint(static_cast<uint64_t>(layer.top_k));
    writer.varint(static_cast<uint64_t>(layer.num_experts));
    if (!is_old) writer.u8(layer.reads_embedding);
  }
  writer.varint(header.terms.size());
  for (const AuditLayout::Term& term : header.terms) {
    writer.u8(static_cast<uint8_t>(term.kind));
    writer.varint(static_cast<uint64_t>(term.layer + 1));
    writer.varint(static_cast<uint64_t>(term.slot + 1));
  }
  writer.varint(groups.size());
  for (const GroupSpec& group : groups) {
    writer.u8(static_cast<uint8_t>(group.id));
    writer.u8(static_cast<uint8_t>(group.kind));
    writer.varint(group.row_bytes);
  }
  put_sealed_keys(writer, header.sealed_keys);
  writer.varint(header.hidden_state_layers.size());
  for (const int32_t layer : header.hidden_state_layers) {
    writer.varint(static_cast<uint64_t>(layer));
  }
  writer.varint(static_cast<uint64_t>(header.hidden_size));
  put_sections(writer, header);
  put_federation(writer, header.federation);
}

std::string version_problem(uint32_t version) {
  return "has format version " + std::to_string(version) + ", expected " +
         std::to_string(kOldestVersion) + " to " + std::to_string(kFormatVersion) +
         "; read it with the Vitrine that wrote it";
}

void parse_header(ByteSpan head, VtrHeader& header, std::vector<GroupSpec>& groups) {
  ByteReader in(head);
  header.format_version = in.u32();
  if (header.format_version < kOldestVersion || header.format_version > kFormatVersion) {
    throw Error(ErrorKind::kUnsupported, version_problem(header.format_version));
  }
  const bool is_old = header.format_version == kOldestVersion;
  std::string host_name;
  header.log_id = in.array<16>();
  header.started_unix_ns = in.u64();
  header.public_key = in.array<32>();
  header.is_key_ephemeral = in.u8(1, "the key's kind") == 1;
  header.detail = static_cast<LogDetail>(in.u8(2, "the level"));
  header.mode = static_cast<AuditMode>(in.u8(2, "the mode"));
  header.has_text = in.u8(1, "the text's flag") == 1;
  header.engine_build = in.string(kMaxText, "the engine's build");
  header.trace_id = in.string(kMaxText, "the trace's id");
  if (!is_old) {
    header.started_monotonic_ns = in.u64();
    host_name = in.string(kMaxText, "the host's name");
    header.counter_tokens = static_cast<int32_t>(in.varint(1 << 20, "the tokens of a count"));
  }
  header.log = get_log(in);
  header.log.host_name = std::move(host_name);
  header.layers.resize(in.varint(4096, "the number of layers"));
  for (AuditLayout::Layer& layer : header.layers) {
    layer.layer = static_cast<int32_t>(in.varint(4095, "a layer's number"));
    layer.top_k = static_cast<int32_t>(in.varint(4096, "top_k"));
    layer.num_experts = static_cast<int32_t>(in.varint(65536, "a layer's number of experts"));
    if (layer.top_k > layer.num_experts) {
      throw_damaged("layer " + std::to_string(layer.layer) + " has top_k " +
                    std::to_string(layer.top_k) + " of " + std::to_string(layer.num_experts) +
                    " experts");
    }
    layer.reads_embedding = !is_old && in.u8(1, "what enters a layer") == 1;
  }
  header.terms.resize(in.varint(kMaxTerms, "the number of terms"));
  for (AuditLayout::Term& term : header.terms) {
    term.kind = static_cast<AuditLayout::Term::Kind>(in.u8(6, "a term's kind"));
    term.layer = static_cast<int32_t>(in.varint(header.layers.size(), "a term's layer")) - 1;
    const bool is_expert = term.kind == AuditLayout::Term::Kind::kExpert && term.layer >= 0;
    const int32_t slots = is_expert ? header.layers[static_cast<size_t>(term.layer)].top_k : 0;
    term.slot = static_cast<int32_t>(in.varint(static_cast<uint64_t>(slots), "a term's slot")) - 1;
    if (term.is_of_layer() != (term.layer >= 0) || is_expert != (term.slot >= 0)) {
      throw_damaged("has a term whose layer or slot does not fit its kind");
    }
  }
  groups.resize(in.varint(64, "the number of column groups"));
  int previous = -1;
  size_t row_bytes = 0;
  for (GroupSpec& group : groups) {
    group.id = static_cast<GroupId>(in.u8());
    if (static_cast<int>(group.id) <= previous) throw_damaged("has column groups out of order");
    previous = static_cast<int>(group.id);
    group.kind = static_cast<GroupKind>(in.u8(2, "a column group's kind"));
    group.row_bytes = static_cast<uint32_t>(in.varint(kMaxRowBytes, "a row's bytes"));
    if ((group.kind == GroupKind::kRows) != (group.row_bytes > 0)) {
      throw_damaged("has a column group whose row bytes do not fit its kind");
    }
    row_bytes += group.row_bytes;
  }
  if (row_bytes > kMaxRowBytes) {
    throw_damaged("has rows of " + std::to_string(row_bytes) + " bytes, expected at most " +
                  std::to_string(kMaxRowBytes));
  }
  header.sealed_keys = get_sealed_keys(in);
  check_recipients(header.sealed_keys, groups);
  get_hidden_states(in, header);
  std::vector<int32_t> num_terms;
  get_sections(in, header, num_terms);
  get_federation(in, header.federation);
  header.federation.num_terms = std::move(num_terms);
  if (!is_split(header.federation, header.terms.size())) {
    throw_damaged("has terms that are no specialist's");
  }
  check_leaving_states(header);
  in.expect_end("the head");
}

void encode_page_head(const PageHead& page, Bytes& out) {
  ByteWriter writer(out);
  writer.varint(page.number);
  writer.u64(page.closed_unix_ns);
  writer.varint(page.rows);
  writer.varint(page.passes);
  writer.varint(page.step_ns);
  for (const GroupSeal& group : page.groups) {
    writer.u8(static_cast<uint8_t>(group.encoding));
    writer.raw(group.root);
    writer.raw(group.stored);
  }
}

PageHead parse_page_head(ByteSpan head, size_t num_groups) {
  ByteReader in(head);
  PageHead page;
  page.number = in.varint();
  page.closed_unix_ns = in.u64();
  page.rows = static_cast<uint32_t>(in.varint(kMaxPageRows, "the number of rows"));
  page.passes = in.varint();
  page.step_ns = in.varint();
  page.groups.resize(num_groups);
  for (GroupSeal& group : page.groups) {
    group.encoding = static_cast<Encoding>(in.u8(4, "a column group's encoding"));
    group.root = in.array<kDigestBytes>();
    group.stored = in.array<kDigestBytes>();
  }
  in.expect_end("the page's head");
  return page;
}

void encode_end(const VtrEnd& end, Bytes& out) {
  ByteWriter writer(out);
  const VtrCounts& counts = end.counts;
  const VtrAccount& positions = counts.positions;
  writer.u64(end.closed_unix_ns);
  writer.string(std::string_view(end.stop_reason).substr(0, kMaxText));
  for (const uint64_t count :
       {counts.pages, counts.passes, counts.step_ns, counts.tokens, counts.generated, counts.scored,
        counts.sequences, counts.events, positions.captured, positions.counted, positions.replayed,
        positions.discarded, positions.lost[0], positions.lost[1], positions.lost[2],
        positions.lost[3]}) {
    writer.varint(count);
  }
}

VtrEnd parse_end(ByteSpan head) {
  ByteReader in(head);
  VtrEnd end;
  VtrCounts& counts = end.counts;
  VtrAccount& positions = counts.positions;
  end.closed_unix_ns = in.u64();
  end.stop_reason = in.string(kMaxText, "the stop reason");
  for (uint64_t* count :
       {&counts.pages, &counts.passes, &counts.step_ns, &counts.tokens, &counts.generated,
        &counts.scored, &counts.sequences, &counts.events, &positions.captured, &positions.counted,
        &positions.replayed, &positions.discarded, &positions.lost[0], &positions.lost[1],
        &positions.lost[2], &positions.lost[3]}) {
    *count = in.varint();
  }
  in.expect_end("the end record");
  return end;
}

void encode_index(const std::vector<IndexRun>& runs, Bytes& out) {
  ByteWriter writer(out);
  IndexRun previous;
  for (const IndexRun& run : runs) {
    writer.varint(zigzag(static_cast<int64_t>(run.sequence - previous.sequence)));
    writer.varint(zigzag(static_cast<int64_t>(run.first - previous.first)));
    writer.varint(run.count);
    previous = run;
  }
}

std::vector<IndexRun> parse_index(ByteSpan bytes, uint32_t rows) {
  ByteReader in(bytes);
  std::vector<IndexRun> runs;
  IndexRun run;
  for (uint32_t found = 0; found < rows; found += run.count) {
    run.sequence += static_cast<uint64_t>(unzigzag(in.varint()));
    run.first += static_cast<uint64_t>(unzigzag(in.varint()));
    run.count = static_cast<uint32_t>(in.varint(rows - found, "a run of the index"));
    if (run.count == 0 || run.first > kMaxPosition) throw_damaged("has an impossible index");
    runs.push_back(run);
  }
  in.expect_end("the index");
  return runs;
}

void encode_events(const std::vector<VtrEvent>& events, Bytes& out) {
  ByteWriter writer(out);
  writer.varint(events.size());
  uint32_t row = 0;
  for (const VtrEvent& event : events) {
    writer.u8(static_cast<uint8_t>(static_cast<uint8_t>(event.kind) |
                                   static_cast<uint8_t>(event.reason) << 4));
    writer.varint(event.row - row);
    row = event.row;
    writer.varint(event.sequence);
    writer.varint(event.source);
    writer.varint(static_cast<uint64_t>(event.first));
    writer.varint(static_cast<uint64_t>(event.count));
  }
}

std::vector<VtrEvent> parse_events(ByteSpan bytes, uint32_t rows) {
  ByteReader in(bytes);
  std::vector<VtrEvent> events(in.varint(kMaxPageEvents, "the number of events"));
  uint32_t row = 0;
  for (VtrEvent& event : events) {
    const uint8_t kind = in.u8();
    if ((kind & 15) > static_cast<uint8_t>(VtrEvent::Kind::kCopied) || kind >> 4 >= kLostReasons) {
      throw_damaged("has an event of kind " + std::to_string(kind) + ", which this version lacks");
    }
    event.kind = static_cast<VtrEvent::Kind>(kind & 15);
    event.reason = static_cast<LostReason>(kind >> 4);
    row += static_cast<uint32_t>(in.varint(rows - row, "an event's row"));
    event.row = row;
    event.sequence = in.varint();
    event.source = in.varint();
    event.first = static_cast<int64_t>(in.varint(kMaxPosition, "an event's position"));
    event.count = static_cast<int64_t>(in.varint(kMaxPosition, "an event's count"));
    if (!is_plain_event(event)) {
      throw_damaged("has an event of kind " + std::to_string(kind) +
                    " with values that it does not use, or of no position");
    }
  }
  in.expect_end("the event column");
  return events;
}

void encode_counters(uint32_t version, const ExpertUses& uses, Bytes& out) {
  ByteWriter writer(out);
  if (version > kOldestVersion) {
    writer.varint(uses.tokens);
    if (uses.tokens == 0) return;
  }
  for (const std::vector<uint64_t>& layer : uses.by_layer) {
    for (const uint64_t count : layer) writer.varint(count);
  }
}

ExpertUses parse_counters(uint32_t version, ByteSpan bytes,
                          const std::vector<AuditLayout::Layer>& layers) {
  ByteReader in(bytes);
  ExpertUses uses;
  if (version > kOldestVersion) uses.tokens = in.varint();
  const bool has_counts = version == kOldestVersion || uses.tokens > 0;
  if (has_counts) uses.by_layer.resize(layers.size());
  for (size_t i = 0; i < uses.by_layer.size(); ++i) {
    for (int32_t expert = 0; expert < layers[i].num_experts; ++expert) {
      uses.by_layer[i].push_back(in.varint());
    }
  }
  in.expect_end("the expert counters");
  return uses;
}

}  // namespace vitrine::audit
