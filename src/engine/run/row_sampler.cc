// SPDX-License-Identifier: Apache-2.0
#include "engine/run/row_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/run/step_checks.h"

namespace vitrine::engine {

namespace {

bool is_allowed(std::span<const uint32_t> mask, size_t id) {
  return (mask[id / 32] >> (id % 32) & 1U) != 0;
}

/// Probability of the tokens that the mask rules out. Adds up the smaller side of it.
double removed_probability(std::span<const uint32_t> mask, int32_t allowed, size_t vocab_size,
                           const float* logits, float log_sum_exp) {
  const bool adds_removed = static_cast<size_t>(allowed) > vocab_size / 2;
  double sum = 0;
  for (size_t word = 0; word < mask.size(); ++word) {
    uint32_t bits = adds_removed ? ~mask[word] : mask[word];
    for (; bits != 0; bits &= bits - 1) {
      const size_t id = word * 32 + static_cast<size_t>(std::countr_zero(bits));
      if (id >= vocab_size) break;
      sum += double{std::exp(logits[id] - log_sum_exp)};
    }
  }
  return std::clamp(adds_removed ? sum : 1 - sum, 0.0, 1.0);
}

}  // namespace

RowSampler::RowSampler(size_t vocab_size, size_t rows)
    : vocab_size_(vocab_size), decisions_(rows), constraints_(rows), masks_(rows) {
  greedy_.add(make_constraint_stage());
  greedy_.add(make_greedy_stage());
  greedy_.sample(std::vector<float>(vocab_size), {});  // its buffers are made now, not in a step
}

void RowSampler::begin(size_t rows) { std::fill_n(masks_.begin(), rows, Mask()); }

void RowSampler::find_mask(const StepInput& input, size_t row, int64_t position) {
  Mask& mask = masks_[row];
  if (mask.is_found) return;
  constraints_[row] = input.constraint;
  mask.bits = input.allowed_tokens;
  if (input.guide != nullptr) {
    mask.bits = input.guide->allowed_tokens(position, constraints_[row]);
    check_mask(input, mask.bits, vocab_size_);
  }
  constraints_[row].allowed = 0;
  for (const uint32_t word : mask.bits) constraints_[row].allowed += std::popcount(word);
  mask.is_found = true;
}

void RowSampler::set_mask(const StepInput& input, size_t row, int64_t position) {
  find_mask(input, row, position);
  if (masks_[row].bits.empty()) return;
  sampler_of(input).set_allowed_tokens(masks_[row].bits, constraints_[row].is_forced());
}

void RowSampler::describe(const StepInput& input, size_t row, const SampleContext& context,
                          DeviceSamplerSteps& steps) {
  set_mask(input, row, context.position);
  DeviceForm::describe(sampler_of(input), context, static_cast<int64_t>(vocab_size_), steps);
}

void RowSampler::take_facts(size_t row, const float* facts) {
  decisions_[row] = {static_cast<int32_t>(facts[0]), facts[1]};
  if (masks_[row].bits.empty()) return;
  constraints_[row].removed = facts[2];
  constraints_[row].first_ruled_out = facts[3] != 0;
}

int32_t RowSampler::sample(const StepInput& input, size_t row, const float* logits,
                           const SampleContext& context) {
  SamplerPipeline& sampler = sampler_of(input);
  set_mask(input, row, context.position);
  if (!masks_[row].bits.empty()) {
    size_t first = 0;
    for (size_t id = 1; id < vocab_size_; ++id) {
      if (logits[id] > logits[first]) first = id;
    }
    constraints_[row].first_ruled_out = !is_allowed(masks_[row].bits, first);
  }
  const int32_t token = sampler.sample({logits, vocab_size_}, context);
  decisions_[row] = sampler.decision();
  return token;
}

void RowSampler::record(const AuditLayout& layout, const StepInput* input, size_t row,
                        const float* logits, std::byte* row_record) {
  const auto put = [row_record](int32_t word, auto value) {
    std::memcpy(row_record + static_cast<size_t>(word) * sizeof(int32_t), &value, sizeof value);
  };
  SampleDecision decision;
  if (input != nullptr) {
    decision = is_needed(*input) ? decisions_[row] : SampleDecision{1, 1.0F};
  }
  put(layout.sampler_candidates, decision.candidates);
  put(layout.sampler_probability, decision.probability);
  if (layout.constraint < 0) return;
  const ConstraintDecision none;
  const bool is_masked = input != nullptr && !masks_[row].bits.empty();
  if (is_masked && logits != nullptr) {
    float log_sum_exp = 0;
    std::memcpy(&log_sum_exp, row_record + static_cast<size_t>(layout.log_sum_exp) * sizeof(float),
                sizeof(float));
    constraints_[row].removed = static_cast<float>(removed_probability(
        masks_[row].bits, constraints_[row].allowed, vocab_size_, logits, log_sum_exp));
  }
  const ConstraintDecision& constraint = is_masked || (input != nullptr && input->guide != nullptr)
                                             ? constraints_[row]
                                         : input != nullptr ? input->constraint
                                                            : none;
  put(layout.constraint, constraint.allowed);
  put(layout.constraint + 1, constraint.removed);
  put(layout.constraint + 2, constraint.mask_microseconds);
  put(layout.constraint + 3, (constraint.is_limited ? 1 : 0) |
                                 (constraint.first_ruled_out ? 2 : 0) | constraint.attempt * 4);
}

void RowSampler::record_forced(const AuditLayout& layout, const StepInput& input, int32_t token,
                               std::byte* row_record) const {
  const auto put = [row_record](int32_t word, auto value) {
    std::memcpy(row_record + static_cast<size_t>(word) * sizeof(int32_t), &value, sizeof value);
  };
  const auto get = [row_record](int32_t word, auto value) {
    std::memcpy(&value, row_record + static_cast<size_t>(word) * sizeof(int32_t), sizeof value);
    return value;
  };
  put(layout.sampler_candidates, int32_t{1});
  put(layout.sampler_probability, 1.0F);
  if (layout.constraint < 0) return;
  const float logprob = get(layout.chosen_logit, 0.0F) - get(layout.log_sum_exp, 0.0F);
  put(layout.constraint, int32_t{1});
  put(layout.constraint + 1,
      static_cast<float>(std::clamp(1 - std::exp(double{logprob}), 0.0, 1.0)));
  put(layout.constraint + 2, 0.0F);
  const bool is_other = get(layout.top_ids, int32_t{0}) != token;
  put(layout.constraint + 3, (is_other ? 2 : 0) | input.constraint.attempt * 4);
}

}  // namespace vitrine::engine
