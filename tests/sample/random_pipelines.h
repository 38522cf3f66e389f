// SPDX-License-Identifier: Apache-2.0
// Rows of logits and sampler pipelines drawn at random, for tests of choices made on a device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "vitrine/sample.h"

namespace vitrine::testing {

/// Normal, or few different values, or mostly ruled out, or far from each other.
inline std::vector<float> draw_logits(std::mt19937& rng, size_t vocabulary) {
  std::normal_distribution<float> normal(0, rng() % 4 == 0 ? 30.0F : 3.0F);
  std::vector<float> logits(vocabulary);
  const bool has_ties = rng() % 3 == 0, has_gaps = rng() % 3 == 0;
  for (float& logit : logits) {
    logit = normal(rng);
    if (has_ties) logit = std::round(logit);
    if (has_gaps && rng() % 4 != 0) logit = -std::numeric_limits<float>::infinity();
  }
  logits[rng() % vocabulary] = 1;  // one is left
  return logits;
}

/// Any of the stages that have a device form.
inline SamplerOptions draw_options(std::mt19937& rng, size_t vocabulary) {
  const auto one_in = [&rng](uint32_t n) { return rng() % n == 0; };
  const auto uniform = [&rng] { return static_cast<float>(rng() % 1000) / 1000.0F; };
  const auto id = [&] { return static_cast<int32_t>(rng() % vocabulary); };
  SamplerOptions options;
  if (one_in(2)) options.temperature = 0.05F + 2 * uniform();
  if (one_in(8)) options.temperature = 0;
  if (one_in(3)) options.top_k = 1 + static_cast<int32_t>(rng() % (vocabulary + 5));
  if (one_in(3)) options.top_p = 0.001F + 0.999F * uniform();
  if (one_in(3)) options.min_p = uniform();
  if (one_in(3)) options.typical_p = 0.001F + 0.999F * uniform();
  if (one_in(3)) options.top_n_sigma = 0.1F + 3 * uniform();
  if (one_in(3)) options.xtc_probability = uniform(), options.xtc_threshold = uniform() / 2;
  if (one_in(3)) options.dynamic_temperature = uniform(), options.dynamic_temperature_exponent = 2;
  if (one_in(3)) options.repetition_penalty = 0.5F + uniform();
  if (one_in(3)) options.frequency_penalty = uniform(), options.presence_penalty = -uniform();
  if (one_in(3)) options.penalty_window = static_cast<int32_t>(rng() % 20);
  if (one_in(3)) options.dry_multiplier = uniform(), options.dry_allowed_length = 1;
  if (one_in(3)) options.logit_bias = {{id(), one_in(2) ? 5.0F : -1.0F}};
  if (one_in(3)) options.ban = {{id()}, {1, id()}, {2, id()}};
  options.seed = rng();
  return options;
}

/// A row of logits and a pipeline with all that it looks at, twice: for the host and for a device.
struct DrawnChoice {
  std::vector<float> logits;
  SamplerPipeline host, device;
  std::vector<int32_t> history;
  std::vector<uint32_t> mask;
  bool is_masked = false;
  uint64_t seed = 0;

  SampleContext context() const { return {seed, static_cast<int64_t>(history.size()), 0, history}; }
  /// Null where the host refuses to choose.
  std::optional<int32_t> host_choice() {
    try {
      return host.sample(logits, context());
    } catch (const Error&) {
      return std::nullopt;
    }
  }
};

inline DrawnChoice draw_choice(std::mt19937& rng, size_t vocabulary) {
  std::vector<float> logits = draw_logits(rng, vocabulary);
  SamplerPipeline host = SamplerPipeline::from_options(draw_options(rng, vocabulary));
  SamplerPipeline device = host.fork();
  DrawnChoice drawn{std::move(logits), std::move(host), std::move(device), {}, {}};
  drawn.history.resize(rng() % 40);
  for (int32_t& id : drawn.history) {
    id = static_cast<int32_t>(rng() % std::min<size_t>(vocabulary, 6));
  }
  drawn.mask.resize((vocabulary + 31) / 32);
  for (uint32_t& word : drawn.mask) word = static_cast<uint32_t>(rng() | rng());
  drawn.is_masked = rng() % 2 == 0;
  drawn.seed = rng();
  if (drawn.is_masked) {
    const bool is_forced = rng() % 8 == 0;
    drawn.host.set_allowed_tokens(drawn.mask, is_forced);
    drawn.device.set_allowed_tokens(drawn.mask, is_forced);
  }
  return drawn;
}

/// What a device says of its choice (candidates, probability, mass removed, best ruled out) is what
/// the host, which has chosen, and the mask say. Use within ASSERT_NO_FATAL_FAILURE.
inline void expect_facts(const DrawnChoice& drawn, std::span<const float> facts) {
  // Where rounding decides whether it was certain, the host calls that a choice of one.
  const SampleDecision& decision = drawn.host.decision();
  if (std::abs(decision.probability - 1) > 1e-6F || facts[0] > 1) {
    ASSERT_EQ(static_cast<int32_t>(facts[0]), decision.candidates);
  }
  ASSERT_NEAR(facts[1], decision.probability, 1e-6F);
  if (!drawn.is_masked) return;
  const std::vector<float>& logits = drawn.logits;
  const auto is_out = [&](size_t id) { return (drawn.mask[id / 32] >> (id % 32) & 1) == 0; };
  double total = 0, removed = 0;
  const double largest = *std::max_element(logits.begin(), logits.end());
  size_t best = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double weight = std::exp(logits[id] - largest);
    total += weight;
    if (is_out(id)) removed += weight;
    if (logits[id] > logits[best]) best = id;
  }
  ASSERT_NEAR(facts[2], removed / total, 1e-6);
  ASSERT_EQ(facts[3] != 0, is_out(best));
}

}  // namespace vitrine::testing
