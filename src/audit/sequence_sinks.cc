// SPDX-License-Identifier: Apache-2.0
#include "vitrine/audit.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "audit/pass_record.h"

namespace vitrine {

struct SequenceSinks::Impl {
  AuditSink* others = nullptr;
  std::unordered_map<uint64_t, AuditSink*> own;
  AuditLayout layout;
  size_t max_record_bytes = 0;
  bool is_open = false;
  uint64_t failed = 0;            // AuditSink::failed_sequence()
  std::vector<uint64_t> slab;     // the step's record, aligned
  std::vector<uint32_t> tokens;   // of a part, by their numbers in the step
  std::vector<AuditSink*> sinks;  // [tokens] of the step

  AuditSink* sink_of(uint64_t sequence) const {
    const auto found = own.find(sequence);
    return found != own.end() ? found->second : others;
  }

  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(slab.data()); }
  AuditToken token(size_t index) const {
    AuditToken token;
    std::memcpy(&token, bytes() + sizeof(AuditPassHeader) + index * sizeof(token), sizeof(token));
    return token;
  }

  bool is_first_of_its_sink(size_t token) const {
    const auto end = sinks.begin() + static_cast<std::ptrdiff_t>(token);
    return sinks[token] != nullptr && std::find(sinks.begin(), end, sinks[token]) == end;
  }
  void write_part(const AuditPassHeader& whole, AuditSink& sink) const;
};

// Writes a record of the tokens in `tokens` into the sink's memory, without commit(): the tokens,
// their rows, and their words, in a pass's order.
void SequenceSinks::Impl::write_part(const AuditPassHeader& whole, AuditSink& sink) const {
  size_t rows = 0;
  for (const uint32_t index : tokens) rows += token(index).row >= 0 ? 1 : 0;
  AuditPassHeader header = audit::record_header(layout, whole.pass, tokens.size(), rows);
  header.step_ns = whole.step_ns;
  std::byte* const record = audit::begin_record(sink, header);
  const size_t row_bytes = static_cast<size_t>(layout.row_words) * sizeof(int32_t);
  const size_t token_bytes = static_cast<size_t>(layout.token_words) * sizeof(int32_t);
  const std::byte* const from =
      bytes() + sizeof(header) + whole.num_tokens * sizeof(AuditToken);  // the pass's words
  const std::byte* const from_rows = from + whole.num_rows * sizeof(int32_t);
  const std::byte* const from_tokens = from_rows + whole.num_rows * row_bytes;
  std::byte* to_token = record + sizeof(header);
  std::byte* to_id = to_token + tokens.size() * sizeof(AuditToken);
  std::byte* to_row = to_id + rows * sizeof(int32_t);
  std::byte* to_words = to_row + rows * row_bytes;
  int32_t next_row = 0;
  for (const uint32_t index : tokens) {
    AuditToken own = token(index);
    if (own.row >= 0) {
      const auto row = static_cast<size_t>(own.row);
      std::memcpy(to_id, from + row * sizeof(int32_t), sizeof(int32_t));
      std::memcpy(to_row, from_rows + row * row_bytes, row_bytes);
      to_id += sizeof(int32_t);
      to_row += row_bytes;
      own.row = next_row++;
    }
    std::memcpy(to_token, &own, sizeof(own));
    to_token += sizeof(own);
    std::memcpy(to_words, from_tokens + index * token_bytes, token_bytes);
    to_words += token_bytes;
  }
}

SequenceSinks::SequenceSinks(AuditSink* others) : impl_(std::make_unique<Impl>()) {
  impl_->others = others;
}
SequenceSinks::~SequenceSinks() = default;

void SequenceSinks::add(uint64_t sequence, AuditSink& sink) {
  if (impl_->own.contains(sequence)) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " has a sink already; remove it first");
  }
  if (impl_->is_open) sink.open(impl_->layout, impl_->max_record_bytes);
  impl_->own.emplace(sequence, &sink);
  if (impl_->is_open) sink.on_event({AuditEvent::Kind::kCreated, sequence, 0, 0, 0});
}

void SequenceSinks::remove(uint64_t sequence) { impl_->own.erase(sequence); }

void SequenceSinks::open(const AuditLayout& layout, size_t max_record_bytes) {
  impl_->layout = layout;
  impl_->max_record_bytes = max_record_bytes;
  impl_->slab.resize((max_record_bytes + 7) / 8);
  const size_t most = max_record_bytes / sizeof(AuditToken);
  impl_->tokens.reserve(most);
  impl_->sinks.reserve(most);
  if (impl_->others != nullptr) impl_->others->open(layout, max_record_bytes);
  for (const auto& [sequence, sink] : impl_->own) {
    sink->open(layout, max_record_bytes);
    if (!impl_->is_open) sink->on_event({AuditEvent::Kind::kCreated, sequence, 0, 0, 0});
  }
  impl_->is_open = true;
}

std::byte* SequenceSinks::reserve(size_t num_bytes) {
  impl_->failed = 0;
  if (num_bytes > impl_->slab.size() * sizeof(uint64_t)) {
    throw Error(ErrorKind::kInternal,
                "a record of " + std::to_string(num_bytes) + " bytes is larger than open() said");
  }
  return reinterpret_cast<std::byte*>(impl_->slab.data());
}

void SequenceSinks::commit() {
  AuditPassHeader header;
  std::memcpy(&header, impl_->bytes(), sizeof(header));
  std::vector<AuditSink*>& sinks = impl_->sinks;
  sinks.clear();
  for (size_t i = 0; i < header.num_tokens; ++i) {
    sinks.push_back(impl_->sink_of(impl_->token(i).sequence));
  }
  // Each sink gets its part once, in the order in which its first token stands. None keeps its part
  // before all have room for theirs: one that has none (a full disk, a log that ended) leaves no
  // half pass.
  for (size_t first = 0; first < sinks.size(); ++first) {
    if (!impl_->is_first_of_its_sink(first)) continue;
    impl_->tokens.clear();
    for (size_t i = first; i < sinks.size(); ++i) {
      if (sinks[i] == sinks[first]) impl_->tokens.push_back(static_cast<uint32_t>(i));
    }
    const uint64_t sequence = impl_->token(first).sequence;
    impl_->failed = impl_->own.contains(sequence) ? sequence : 0;
    impl_->write_part(header, *sinks[first]);
  }
  impl_->failed = 0;
  for (size_t first = 0; first < sinks.size(); ++first) {
    if (impl_->is_first_of_its_sink(first)) sinks[first]->commit();
  }
}

uint64_t SequenceSinks::failed_sequence() const { return impl_->failed; }

void SequenceSinks::on_event(const AuditEvent& event) {
  AuditSink* const sink = impl_->sink_of(event.sequence);
  if (sink != nullptr) sink->on_event(event);
}

void SequenceSinks::on_failure(const ConstraintFailure& failure) {
  AuditSink* const sink = impl_->sink_of(failure.sequence);
  if (sink != nullptr) sink->on_failure(failure);
}

void SequenceSinks::on_drafts(const DraftedPass& drafts) {
  AuditSink* const sink = impl_->sink_of(drafts.sequence);
  if (sink != nullptr) sink->on_drafts(drafts);
}

}  // namespace vitrine
