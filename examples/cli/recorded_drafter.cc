// SPDX-License-Identifier: Apache-2.0
#include "recorded_drafter.h"

#include <algorithm>
#include <utility>

namespace cli {

RecordedDrafter::RecordedDrafter(std::vector<int32_t> record, int right_run, int64_t vocab_size)
    : record_(std::move(record)), right_run_(right_run), vocab_size_(vocab_size) {}

vitrine::DraftTextId RecordedDrafter::start(const vitrine::DraftText& text) {
  texts_.push_back({text.prompt_tokens, 0});
  return texts_.size();
}

vitrine::DraftTextId RecordedDrafter::fork(vitrine::DraftTextId text) {
  texts_.push_back(at(text));
  return texts_.size();
}

void RecordedDrafter::commit(vitrine::DraftTextId text, std::span<const int32_t> tokens) {
  at(text).length += std::ssize(tokens);
}

void RecordedDrafter::truncate(vitrine::DraftTextId text, int64_t length) {
  at(text).length = length;
}

void RecordedDrafter::propose(std::span<vitrine::DraftProposal> proposals) {
  for (vitrine::DraftProposal& proposal : proposals) {
    const Text& text = at(proposal.text);
    const int64_t answered = text.length - text.prompt_tokens;
    const int64_t count =
        std::min({std::ssize(record_) - answered, right_run_ + 1, std::ssize(proposal.tokens)});
    proposal.count = static_cast<int32_t>(std::max<int64_t>(count, 0));
    for (int64_t i = 0; i < proposal.count; ++i) {
      const int64_t token = record_[static_cast<size_t>(answered + i)];
      const bool is_wrong = i == right_run_;
      proposal.tokens[static_cast<size_t>(i)] =
          static_cast<int32_t>(is_wrong ? (token + 1) % vocab_size_ : token);
    }
  }
}

}  // namespace cli
