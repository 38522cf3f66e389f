// SPDX-License-Identifier: Apache-2.0
#include "serve/record_tap.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "audit/pass_record.h"

namespace vitrine::serve {

namespace {

uint64_t random_salt() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

RecordTap::RecordTap(SequenceSinks& next, int64_t max_step_tokens)
    : next_(next), max_step_tokens_(max_step_tokens), salt_(random_salt()) {}

void RecordTap::follow(uint64_t sequence, std::vector<int32_t> words) {
  words_[sequence] = std::move(words);
}

std::span<const int32_t> RecordTap::words(uint64_t sequence) const {
  const auto found = words_.find(sequence);
  return found == words_.end() ? std::span<const int32_t>() : found->second;
}

void RecordTap::open(const AuditLayout& layout, size_t max_record_bytes) {
  layout_ = layout;
  next_.open(layout, max_record_bytes);
}

std::byte* RecordTap::reserve(size_t num_bytes) {
  std::byte* const memory = next_.reserve(num_bytes);
  record_ = memory;
  return memory;
}

void RecordTap::commit() {
  AuditPassHeader header;
  std::memcpy(&header, record_, sizeof(header));
  next_.commit();  // the record stays where it is
  pass_ = header.pass;
  const size_t row_bytes = static_cast<size_t>(layout_.row_words) * sizeof(int32_t);
  const size_t token_bytes = static_cast<size_t>(layout_.token_words) * sizeof(int32_t);
  const std::byte* const tokens = record_ + sizeof(header);
  const std::byte* words = tokens + header.num_tokens * sizeof(AuditToken) +
                           header.num_rows * (sizeof(int32_t) + row_bytes);
  for (size_t i = 0; i < header.num_tokens; ++i, words += token_bytes) {
    AuditToken token;
    std::memcpy(&token, tokens + i * sizeof(token), sizeof(token));
    const auto found = words_.find(token.sequence);
    if (found == words_.end()) continue;
    std::vector<int32_t>& own = found->second;
    const auto at = static_cast<size_t>(token.position) * static_cast<size_t>(layout_.token_words);
    if (own.size() != at) continue;  // a gap, or computed again
    own.resize(at + static_cast<size_t>(layout_.token_words));
    std::memcpy(own.data() + at, words, token_bytes);
  }
}

void RecordTap::on_event(const AuditEvent& event) {
  const auto found = words_.find(event.sequence);
  if (found != words_.end() && event.kind == AuditEvent::Kind::kTruncated) {
    const auto most = static_cast<size_t>(event.length * layout_.token_words);
    found->second.resize(std::min(found->second.size(), most));
  }
  if (event.kind == AuditEvent::Kind::kReleased) words_.erase(event.sequence);
  next_.on_event(event);
}

void RecordTap::copy(AuditSink& sink, uint64_t sequence, PrefixId prefix,
                     std::span<const int32_t> tokens, std::span<const int32_t> words) const {
  const auto count = static_cast<int64_t>(tokens.size());
  AuditEvent copied;
  copied.kind = AuditEvent::Kind::kCopied;
  copied.sequence = sequence;
  copied.source = (prefix + 1) * 0x9E3779B97F4A7C15ull ^ salt_;
  copied.length = count;
  sink.on_event(copied);
  for (int64_t first = 0; first < count; first += max_step_tokens_) {
    const auto part = static_cast<size_t>(std::min(max_step_tokens_, count - first));
    const AuditPassHeader header = audit::record_header(layout_, pass_, part, 0);
    std::byte* to = audit::begin_record(sink, header) + sizeof(header);
    for (size_t i = 0; i < part; ++i, to += sizeof(AuditToken)) {
      AuditToken token;
      token.sequence = sequence;
      token.position = static_cast<int32_t>(first) + static_cast<int32_t>(i);
      token.token = tokens[static_cast<size_t>(first) + i];
      std::memcpy(to, &token, sizeof(token));
    }
    std::memcpy(to, words.data() + first * layout_.token_words,
                part * static_cast<size_t>(layout_.token_words) * sizeof(int32_t));
    sink.commit();
  }
}

}  // namespace vitrine::serve
