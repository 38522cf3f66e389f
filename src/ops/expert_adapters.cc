// SPDX-License-Identifier: Apache-2.0
#include "ops/expert_adapters.h"

#include <algorithm>

#include "ops/adapters.h"

namespace vitrine::ops {

ExpertAdapters::ExpertAdapters(PlanContext& context, const std::vector<ExpertModules>& modules,
                               int64_t top_k)
    : kernel_(context.kernel),
      top_k_(static_cast<int32_t>(top_k)),
      num_experts_(static_cast<int32_t>(modules.size())) {
  if (context.adapters == nullptr) return;
  adapters_ = static_cast<size_t>(context.adapters->size());
  hidden_size_ = modules[0].hidden;
  intermediate_ = modules[0].intermediate;
  int64_t rank = 0;
  std::vector<uint64_t> bytes(adapters_ * modules.size());
  for (size_t expert = 0; expert < modules.size(); ++expert) {
    const ExpertModules& of = modules[expert];
    for (const auto& [matrix, module] :
         {std::pair{kGate, &of.gate}, std::pair{kUp, &of.up}, std::pair{kDown, &of.down}}) {
      for (size_t adapter = 0; adapter < adapters_; ++adapter) {
        const LowRankMatrix* found = context.adapters->find(static_cast<int32_t>(adapter), *module);
        matrices_[matrix].push_back(found);
        if (found == nullptr) continue;
        (matrix == kDown ? changes_outer_ : changes_inner_) = true;
        rank = std::max(rank, found->a.rows);
        bytes[adapter * modules.size() + expert] +=
            ops::weight_bytes(found->a) + ops::weight_bytes(found->b);
      }
    }
  }
  if (empty()) return;
  // As of a token that meets the largest of each adapter's experts in every slot.
  for (size_t adapter = 0; adapter < adapters_; ++adapter) {
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(adapter * modules.size());
    weight_bytes_ += *std::max_element(first, first + static_cast<std::ptrdiff_t>(modules.size())) *
                     static_cast<uint64_t>(top_k);
  }
  const int64_t num_slots = context.shape.max_tokens * top_k;
  if (changes_inner_) {
    before_ = {&context.scratch.shared_rows("expert_gate", num_slots, intermediate_),
               &context.scratch.shared_rows("expert_up", num_slots, intermediate_)};
  }
  for (size_t matrix = 0; matrix < low_.size(); ++matrix) {
    low_[matrix] =
        &context.scratch.shared_rows("expert_adapter_" + std::to_string(matrix), num_slots, rank);
  }
  adapter_of_ = context.scratch.shared_array<int32_t>("adapter_of", context.shape.max_tokens);
  slots_ = context.scratch.shared_array<int32_t>("adapter_slots", num_slots);
  tokens_ = context.scratch.shared_array<int32_t>("adapter_tokens", num_slots);
  pairs_.reserve(static_cast<size_t>(
      std::min<int64_t>(num_slots, static_cast<int64_t>(adapters_) * num_experts_)));
}

void ExpertAdapters::group(const StepState& step, const int32_t* begin, const int32_t* slot_of) {
  pairs_.clear();
  if (empty() || step.num_adapters == 0) return;
  std::fill_n(adapter_of_, step.tokens, -1);
  for (int32_t i = 0; i < step.num_adapters; ++i) {
    const AdapterRows& of = step.adapters[i];
    for (int32_t j = 0; j < of.count; ++j) adapter_of_[of.rows[j]] = of.adapter;
  }
  int32_t used = 0;
  for (int32_t expert = 0; expert < num_experts_; ++expert) {
    for (int32_t i = 0; i < step.num_adapters; ++i) {
      Pair pair{expert, step.adapters[i].adapter, used, 0};
      if (!find(kGate, pair) && !find(kUp, pair) && !find(kDown, pair)) continue;
      for (int32_t place = begin[expert]; place < begin[expert + 1]; ++place) {
        const int32_t token = slot_of[place] / top_k_;
        if (adapter_of_[token] != pair.adapter) continue;
        slots_[used] = slot_of[place];
        tokens_[used++] = token;
      }
      pair.count = used - pair.first;
      if (pair.count > 0) pairs_.push_back(pair);
    }
  }
}

int64_t ExpertAdapters::inner_pieces(int half) const {
  if (!changes_inner_) return 0;
  const auto pairs = static_cast<int64_t>(pairs_.size());
  return 2 * pairs * (half == 0 ? 1 : divide_up(intermediate_, kRowsPerPiece));
}

void ExpertAdapters::run_inner(const RowBuffer& in, int half, int64_t piece) const {
  const Matrix matrix = piece % 2 == 0 ? kGate : kUp;
  piece /= 2;
  const auto pairs = static_cast<int64_t>(pairs_.size());
  const Pair& pair = pairs_[static_cast<size_t>(piece % pairs)];
  run(matrix, pair, half, piece / pairs, half == 0 ? in : *low_[matrix],
      half == 0 ? tokens_ : slots_, half == 0 ? *low_[matrix] : *before_[matrix]);
}

int64_t ExpertAdapters::outer_pieces(int half) const {
  if (!changes_outer_) return 0;
  const auto pairs = static_cast<int64_t>(pairs_.size());
  return pairs * (half == 0 ? 1 : divide_up(hidden_size_, kRowsPerPiece));
}

void ExpertAdapters::run_outer(const RowBuffer& hidden, const RowBuffer& slots, int half,
                               int64_t piece) const {
  const auto pairs = static_cast<int64_t>(pairs_.size());
  const Pair& pair = pairs_[static_cast<size_t>(piece % pairs)];
  run(kDown, pair, half, piece / pairs, half == 0 ? hidden : *low_[kDown], slots_,
      half == 0 ? *low_[kDown] : slots);
}

void ExpertAdapters::run(Matrix matrix, const Pair& pair, int half, int64_t block,
                         const RowBuffer& from, const int32_t* from_rows,
                         const RowBuffer& to) const {
  const LowRankMatrix* of = find(matrix, pair);
  if (of == nullptr) return;
  const kernels::Weight& weight = half == 0 ? of->a : of->b;
  const int64_t begin = block * kRowsPerPiece;
  const int64_t end = half == 0 ? weight.rows : std::min(weight.rows, begin + kRowsPerPiece);
  const kernels::RowMap rows{from_rows + pair.first, slots_ + pair.first, pair.count};
  kernel_.linear(weight, half == 0 ? 0 : begin, end, activations(from, weight), rows, nullptr,
                 half == 0 ? nullptr : &of->scale, to.data, to.width);
}

}  // namespace vitrine::ops
