// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace vitrine::model {
namespace {

/// YaRN (Peng et al. 2023): fast pairs keep their frequency, slow ones are divided by the factor, a
/// ramp lies between.
void scale_yarn(const ModelConfig& config, const std::vector<float>& powers,
                std::vector<float>& frequencies) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto dim = static_cast<double>(config.rotary_width());
  const auto correction = [&](double rotations) {
    const double positions = static_cast<double>(scaling.original_max_position_embeddings);
    return dim * std::log(positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(config.rope_theta));
  };
  double low = correction(scaling.beta_fast);
  double high = correction(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float linear =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0F - std::clamp(linear, 0.0F, 1.0F);
    const float interpolated = 1.0F / (static_cast<float>(scaling.factor) * powers[i]);
    frequencies[i] = interpolated * (1.0F - kept) + frequencies[i] * kept;
  }
}

/// Llama 3.1: long waves are divided by the factor, short ones are kept, a ramp lies between.
void scale_llama3(const RopeScaling& scaling, std::vector<float>& frequencies) {
  const double positions = static_cast<double>(scaling.original_max_position_embeddings);
  const auto longest = static_cast<float>(positions / scaling.low_freq_factor);
  const auto shortest = static_cast<float>(positions / scaling.high_freq_factor);
  const auto factor = static_cast<float>(scaling.factor);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto span = static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  for (float& frequency : frequencies) {
    const float wave = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wave > longest) {
      frequency /= factor;
    } else if (!(wave < shortest)) {
      const float smooth = (static_cast<float>(positions) / wave - low) / span;
      frequency = (1.0F - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

/// The config of a model all of whose layers are of that kind.
ModelConfig config_of(const ModelConfig& config, RopeKind kind) {
  ModelConfig own = config;
  if (config.slides.empty()) return own;
  if (kind == RopeKind::kSliding) {
    own.rope_theta = config.sliding_rope_theta;
    own.global_rotary_share = 1.0;
  } else {
    own.head_dim = config.global_head_dim;
  }
  return own;
}

}  // namespace

int64_t rope_half(const ModelConfig& config, RopeKind kind) {
  return config_of(config, kind).rotary_width() / 2;
}

std::vector<float> rope_frequencies(const ModelConfig& whole, RopeKind kind) {
  const ModelConfig config = config_of(whole, kind);
  const auto half = static_cast<size_t>(config.rotary_width() / 2);
  const RopeScaling& scaling = config.rope_scaling;
  std::vector<float> powers(half), frequencies(half);
  for (size_t i = 0; i < half; ++i) {
    const auto exponent =
        static_cast<float>(static_cast<double>(2 * i) / static_cast<double>(config.rotary_width()));
    powers[i] = static_cast<float>(std::pow(config.rope_theta, exponent));
    frequencies[i] = 1.0F / powers[i];
  }
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone: break;
    case RopeScaling::Kind::kLinear:
      for (float& frequency : frequencies) frequency /= static_cast<float>(scaling.factor);
      break;
    case RopeScaling::Kind::kYarn: scale_yarn(config, powers, frequencies); break;
    case RopeScaling::Kind::kLlama3: scale_llama3(scaling, frequencies); break;
    case RopeScaling::Kind::kDivisors:
      for (size_t i = 0; i < half; ++i) {
        frequencies[i] = 1.0F / (static_cast<float>(scaling.divisors[i]) * powers[i]);
      }
      break;
  }
  // "proportional": those behind the share turn nothing.
  const auto turned = static_cast<size_t>(config.global_rotary_share *
                                          static_cast<double>(config.rotary_width()) / 2);
  if (config.global_rotary_share < 1.0) {
    for (size_t i = turned; i < half; ++i) frequencies[i] = 0.0F;
  }
  return frequencies;
}

float rope_attention_factor(const ModelConfig& config) {
  return static_cast<float>(config.rope_scaling.attention_factor);
}

}  // namespace vitrine::model
