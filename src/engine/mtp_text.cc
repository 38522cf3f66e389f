// SPDX-License-Identifier: Apache-2.0
#include "engine/mtp_text.h"

#include <algorithm>

#include "vitrine/speculate.h"

namespace vitrine::engine {

MtpText::MtpText(SequenceId layer_sequence, int64_t hidden_size, int64_t max_tokens)
    : sequence(layer_sequence), hidden_(hidden_size) {
  tokens_.reserve(static_cast<size_t>(max_tokens));
  guessed.reserve(kMaxDrafts);
  output.resize(static_cast<size_t>(hidden_size));
}

void MtpText::append(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  guessed.clear();
}

void MtpText::truncate(int64_t length) {
  tokens_.resize(static_cast<size_t>(length));
  guessed.clear();
  forget_rows(length);
  const int64_t pairs = std::max<int64_t>(0, length - 1 - begin_);
  if (pairs >= run_) return;
  run_ = pairs;
  rows_.clear();  // they stand behind those that were run
}

// Those from this position on.
void MtpText::forget_rows(int64_t first) {
  const int64_t kept = std::clamp<int64_t>(first - next(), 0, num_rows());
  rows_.resize(static_cast<size_t>(kept * hidden_));
}

std::span<float> MtpText::add_rows(int64_t first, int64_t count) {
  if (first < begin_ || first > next() + num_rows()) {
    begin_ = first;
    run_ = 0;
  }
  run_ = std::min(run_, first - begin_);
  if (first == next()) {
    rows_.clear();
  } else {
    forget_rows(first);
  }
  const size_t before = rows_.size();
  rows_.resize(before + static_cast<size_t>(count * hidden_));
  return std::span(rows_).subspan(before);
}

int64_t MtpText::num_ready() const {
  return std::max<int64_t>(0, std::min(num_rows(), std::ssize(tokens_) - 1 - next()));
}

std::span<const int32_t> MtpText::ready_tokens(int64_t count) const {
  return std::span(tokens_).subspan(static_cast<size_t>(next()) + 1, static_cast<size_t>(count));
}

std::span<const float> MtpText::ready_rows(int64_t count) const {
  return std::span(rows_).first(static_cast<size_t>(count * hidden_));
}

void MtpText::take(int64_t count) {
  rows_.erase(rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(count * hidden_));
  run_ += count;
}

bool MtpText::is_complete() const { return next() + num_ready() == std::ssize(tokens_) - 1; }

}  // namespace vitrine::engine
