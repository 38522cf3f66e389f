// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/mtp_text.h"

#include <algorithm>

#include "vitrine/speculate.h"

namespace vitrine::engine {

MtpText::MtpText(std::vector<SequenceId> sequences, int64_t hidden_size, int64_t max_tokens)
    : hidden_(hidden_size), layers_(sequences.size()) {
  tokens_.reserve(static_cast<size_t>(max_tokens));
  guessed.reserve(kMaxDrafts);
  output.resize(static_cast<size_t>(hidden_size));
  for (size_t layer = 0; layer < layers_.size(); ++layer) set_sequence(layer, sequences[layer]);
}

uint64_t MtpText::bytes() const {
  size_t floats = output.capacity() + guessed_rows.capacity();
  for (const Layer& layer : layers_) floats += layer.rows.capacity();
  return floats * sizeof(float) + (tokens_.capacity() + guessed.capacity()) * sizeof(int32_t);
}

void MtpText::append(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  guessed.clear();
}

void MtpText::truncate(int64_t length) {
  tokens_.resize(static_cast<size_t>(length));
  guessed.clear();
  for (size_t index = 0; index < layers_.size(); ++index) {
    Layer& layer = layers_[index];
    const auto before = static_cast<int64_t>(index);  // layers, each of which looks one further
    forget_rows(layer, length - before);
    const int64_t pairs = std::max<int64_t>(0, length - 1 - before - layer.begin);
    if (pairs >= layer.run) continue;
    layer.run = pairs;
    layer.rows.clear();  // they stand behind those that were run
  }
}

// Those from this position on.
void MtpText::forget_rows(Layer& layer, int64_t first) const {
  const int64_t kept = std::clamp<int64_t>(first - layer.begin - layer.run, 0, num_rows(layer));
  layer.rows.resize(static_cast<size_t>(kept * hidden_));
}

// Rows and pairs from this position on go.
void MtpText::cut(Layer& layer, int64_t first) const {
  const int64_t next = layer.begin + layer.run;
  layer.run = std::min(layer.run, first - layer.begin);
  if (first <= next) {
    layer.rows.clear();
  } else {
    forget_rows(layer, first);
  }
}

std::span<float> MtpText::add_rows(size_t layer, int64_t first, int64_t count) {
  Layer& own = layers_[layer];
  if (first < own.begin || first > own.begin + own.run + num_rows(own)) {
    own.begin = first;
    own.run = 0;
  }
  cut(own, first);
  const size_t before = own.rows.size();
  own.rows.resize(before + static_cast<size_t>(count * hidden_));
  return std::span(own.rows).subspan(before);
}

void MtpText::forget_outputs(int64_t first) {
  for (size_t index = 1; index < layers_.size(); ++index) {
    Layer& layer = layers_[index];
    if (first >= layer.begin + layer.run + num_rows(layer)) continue;
    cut(layer, std::max(first, layer.begin));
  }
}

int64_t MtpText::num_ready(size_t layer) const {
  const int64_t known = std::ssize(tokens_) - 1 - static_cast<int64_t>(layer) - next(layer);
  return std::max<int64_t>(0, std::min(num_rows(layers_[layer]), known));
}

std::span<const int32_t> MtpText::ready_tokens(size_t layer, int64_t count) const {
  if (count == 0) return {};
  return std::span(tokens_).subspan(static_cast<size_t>(next(layer)) + 1 + layer,
                                    static_cast<size_t>(count));
}

void MtpText::take(size_t layer, int64_t count) {
  Layer& own = layers_[layer];
  own.rows.erase(own.rows.begin(), own.rows.begin() + static_cast<ptrdiff_t>(count * hidden_));
  own.run += count;
}

}  // namespace vitrine::engine
