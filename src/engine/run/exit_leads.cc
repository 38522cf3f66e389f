// SPDX-License-Identifier: Apache-2.0
#include "engine/run/exit_leads.h"

#include <algorithm>

namespace vitrine::engine {

namespace {

// Items [first, first + count) of `width` values each.
template <typename Value>
void append_items(const std::vector<Value>& from, size_t first, size_t count, size_t width,
                  std::vector<Value>& to) {
  const auto begin = from.begin() + static_cast<ptrdiff_t>(first * width);
  to.insert(to.end(), begin, begin + static_cast<ptrdiff_t>(count * width));
}

}  // namespace

void ExitLeads::reserve(size_t tokens, size_t hidden_size, size_t record_bytes) {
  hidden_size_ = hidden_size;
  record_bytes_ = record_bytes;
  max_tokens_ = tokens;
  entries_.reserve(tokens);
  tokens_.reserve(tokens);
  for (ExitRows* rows : {&rows_, &taken_}) {
    rows->residual.reserve(tokens * hidden_size);
    rows->words.reserve(tokens * record_bytes);
  }
}

void ExitLeads::begin(int layer, const LayerWords& words) {
  layer_ = layer;
  layer_words_ = words;
  entries_.clear();
  tokens_.clear();
  rows_.clear();
}

void ExitLeads::add(SequenceId sequence, int64_t past, std::span<const int32_t> tokens,
                    const ExitRows& rows) {
  if (tokens_.size() + tokens.size() > max_tokens_) return;
  entries_.push_back({sequence, past, tokens_.size(), tokens.size()});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  append_items(rows.residual, 0, tokens.size(), hidden_size_, rows_.residual);
  if (!rows.words.empty()) append_items(rows.words, 0, tokens.size(), record_bytes_, rows_.words);
}

const ExitLeads::Entry* ExitLeads::find(const StepInput& input, const kv::BlockPool& pool) const {
  if (!input.routes.empty() || !input.draft_parents.empty()) return nullptr;
  const auto entry = std::ranges::find(entries_, input.sequence, &Entry::sequence);
  if (entry == entries_.end() || entry->past != pool.get(input.sequence).length) return nullptr;
  if (input.tokens.size() > entry->count) return nullptr;
  const auto own = std::span(tokens_).subspan(entry->first, input.tokens.size());
  return std::ranges::equal(own, input.tokens) ? &*entry : nullptr;
}

bool ExitLeads::take(std::span<const StepInput> inputs, const kv::BlockPool& pool,
                     bool needs_words) {
  taken_.clear();
  bool is_led = !needs_words || rows_.words.size() == tokens_.size() * record_bytes_;
  for (size_t i = 0; is_led && i < inputs.size(); ++i) {
    const Entry* const entry = find(inputs[i], pool);
    is_led = entry != nullptr;
    if (!is_led) break;
    const size_t count = inputs[i].tokens.size();
    append_items(rows_.residual, entry->first, count, hidden_size_, taken_.residual);
    if (needs_words) append_items(rows_.words, entry->first, count, record_bytes_, taken_.words);
  }
  clear();
  num_taken_ += is_led ? 1 : 0;
  return is_led;
}

}  // namespace vitrine::engine
