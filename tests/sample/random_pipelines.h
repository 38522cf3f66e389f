// Rows of logits and sampler pipelines drawn at random, for tests of choices made on a device.
#pragma once

#include <cmath>
#include <limits>
#include <random>
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

}  // namespace vitrine::testing
