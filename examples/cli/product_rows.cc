// SPDX-License-Identifier: Apache-2.0
#include "product_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace cli {

namespace {

/// Keeps the log-probabilities that the specialists give to every token of the vocabulary. As a
/// combiner it lets the first one speak.
class RowKeeper final : public vitrine::Combiner {
 public:
  std::string_view name() const override { return "rows"; }

  void combine(const vitrine::CombinerInput& input, std::span<float> joint) override {
    for (const vitrine::SpecialistRow& row : input.specialists) {
      for (const float logit : row.logits) {
        rows_.push_back(static_cast<float>(double{logit} - row.log_sum_exp));
      }
    }
    const vitrine::SpecialistRow& first = input.specialists[0];
    for (size_t t = 0; t < joint.size(); ++t) {
      joint[t] = static_cast<float>(double{first.logits[t]} - first.log_sum_exp);
    }
  }

  vitrine::JointScore explain(const vitrine::CombinerInput& input, int32_t token,
                              std::span<vitrine::SpecialistShare> shares) override {
    for (size_t i = 0; i < shares.size(); ++i) {
      const vitrine::SpecialistRow& row = input.specialists[i];
      const double alone = i == 0 ? 1.0 : 0.0;
      shares[i] = {double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp, alone, alone};
    }
    return {shares[0].logprob, 0.0};
  }

  /// Moves the oldest `count` numbers that are still here to the end of `to`.
  void take(size_t count, std::vector<float>& to) {
    const auto begin = rows_.begin() + static_cast<std::ptrdiff_t>(taken_);
    to.insert(to.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
    taken_ += count;
    if (taken_ < rows_.size()) return;
    rows_.clear();
    taken_ = 0;
  }

 private:
  std::vector<float> rows_;  // of the step under way: [rows, specialists, vocabulary]
  size_t taken_ = 0;
};

void require_row_numbers(const vitrine::FederationSpec& spec, const std::string& text,
                         std::span<const float> rows) {
  const auto found = std::ranges::find_if(rows, [](float value) { return !std::isfinite(value); });
  if (found == rows.end()) return;
  const size_t of =
      static_cast<size_t>(found - rows.begin()) / (rows.size() / spec.specialists.size());
  refuse_no_number(spec.specialists[of].name, text, double{*found});
}

size_t count_windows(const ScoredTexts& texts, size_t width) {
  size_t count = 0;
  for (const std::vector<int32_t>& ids : texts.ids) count += (ids.size() - 2) / width + 1;
  return count;
}

}  // namespace

ProductRows score_product_rows(const vitrine::FederationSpec& spec, const ScoredTexts& texts,
                               const DeviceOptions& device, int window, double held_out,
                               uint64_t memory_bytes) {
  auto owned = std::make_unique<RowKeeper>();
  RowKeeper& keeper = *owned;
  const auto federation =
      vitrine::Federation::load(spec, text_options(device, window), std::move(owned));
  ProductRows rows;
  for (vitrine::ProductFitData* data : {&rows.train, &rows.held_out}) {
    data->num_specialists = spec.specialists.size();
    data->vocab_size = static_cast<size_t>(federation->summary().vocab_size);
  }
  const size_t row_values = rows.train.num_specialists * rows.train.vocab_size;
  const size_t window_bytes = row_values * sizeof(float) * static_cast<size_t>(window);
  const size_t most = std::max<size_t>(1, memory_bytes / window_bytes);
  rows.every = (count_windows(texts, static_cast<size_t>(window)) + most - 1) / most;
  catch_interrupts();
  score_texts(
      *federation, texts, window,
      [&](const ScoredToken& token) {
        const bool is_outside = is_held_out(token.window / rows.every, held_out);
        vitrine::ProductFitData& data = is_outside ? rows.held_out : rows.train;
        keeper.take(row_values, data.logprobs);
        require_row_numbers(spec, texts.names[token.text],
                            std::span(data.logprobs).last(row_values));
        data.tokens.push_back(token.token);
      },
      rows.every);
  release_interrupts(kFederateCancelled);
  if (rows.train.tokens.empty() || rows.held_out.tokens.empty()) {
    refuse(
        fmt::format("{} tokens of the texts were scored, in windows of {}: too few to hold some "
                    "out; expected more text, a smaller --window or more --memory",
                    rows.train.tokens.size() + rows.held_out.tokens.size(), window));
  }
  return rows;
}

}  // namespace cli
