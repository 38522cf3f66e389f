// SPDX-License-Identifier: Apache-2.0
// The rotary part of config.json: `rope_theta`, and `rope_scaling` or `rope_parameters`.
#include <cmath>

#include "config_limits.h"
#include "rope_config.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

/// Reads how much of a head is rotated: a share, or a number of elements.
void read_rotary_dim(const Fields& fields, ModelConfig& config, bool rotates_part) {
  const auto factor = fields.number("partial_rotary_factor", 0.0, 1.0);
  const auto elements = fields.integer("rotary_dim", 1, config.head_dim);
  if (!factor && !elements) return;
  if (!rotates_part) {
    if (factor && *factor != 1.0) fields.unsupported("partial_rotary_factor", "1 (whole heads)");
    return;
  }
  const int64_t width =
      factor ? static_cast<int64_t>(static_cast<double>(config.head_dim) * *factor) : *elements;
  if (width < 2 || width % 2 != 0) {
    fields.bad(factor ? "partial_rotary_factor" : "rotary_dim",
               "an even number of a head's " + std::to_string(config.head_dim) + " elements");
  }
  if (factor && elements && *elements != width) {
    fields.bad("rotary_dim", std::to_string(width) + ", as partial_rotary_factor has it");
  }
  config.rotary_dim = width;
}

double required_number(const Fields& fields, std::string_view name, double low, double high) {
  const auto value = fields.number(name, low, high);
  if (!value) fields.bad(name, "a number");
  return *value;
}

/// transformers' own default for the scale of cosine and sine.
double usual_attention_factor(double factor, double weight = 1.0) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

int64_t original_positions(const Fields& fields, const ModelConfig& config) {
  return fields.integer("original_max_position_embeddings", 1, kMaxPositions)
      .value_or(config.max_position_embeddings);
}

void read_yarn(const Fields& fields, const ModelConfig& config, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kYarn;
  scaling.original_max_position_embeddings = original_positions(fields, config);
  scaling.factor = required_number(fields, "factor", 1e-6, kMaxFactor);
  const auto or_default = [&](std::string_view name, double fallback) {
    const double value = fields.number(name, 0.0, kMaxFactor).value_or(fallback);
    return value == 0.0 ? fallback : value;
  };
  scaling.beta_fast = or_default("beta_fast", 32.0);
  scaling.beta_slow = or_default("beta_slow", 1.0);
  scaling.truncate = fields.boolean("truncate").value_or(true);
  if (config.rope_theta <= 1.0) {
    throw_bad_file(fields.place() +
                   ": asks for YaRN, but the base of RoPE ('rope_theta', of GGUF "
                   "files 'rope.freq_base') is 1; expected a number above 1");
  }
  const double weight = or_default("mscale", 0.0);
  const double weight_all = or_default("mscale_all_dim", 0.0);
  scaling.mscale_all_dim = weight_all;
  const double usual = weight != 0.0 && weight_all != 0.0
                           ? usual_attention_factor(scaling.factor, weight) /
                                 usual_attention_factor(scaling.factor, weight_all)
                           : usual_attention_factor(scaling.factor);
  scaling.attention_factor = fields.number("attention_factor", 1e-6, kMaxFactor).value_or(usual);
}

void read_llama3(const Fields& fields, const ModelConfig& config, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.original_max_position_embeddings = original_positions(fields, config);
  scaling.factor = required_number(fields, "factor", 1e-6, kMaxFactor);
  scaling.low_freq_factor = required_number(fields, "low_freq_factor", 1e-6, kMaxFactor);
  scaling.high_freq_factor = required_number(fields, "high_freq_factor", 1e-6, kMaxFactor);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    fields.bad("high_freq_factor", "a number above low_freq_factor");
  }
}

/// LongRoPE whose lists for short and long texts are one; a choice by length would give a token
/// two results.
void read_longrope(const Fields& fields, const ModelConfig& config, RopeScaling& scaling) {
  scaling.kind = RopeScaling::Kind::kDivisors;
  const auto half = static_cast<size_t>(config.rotary_width() / 2);
  scaling.divisors = fields.numbers("short_factor", 1e-6, 1e6, half);
  if (fields.numbers("long_factor", 1e-6, 1e6, half) != scaling.divisors) {
    fields.unsupported("long_factor", "the values of short_factor");
  }
  const int64_t positions = original_positions(fields, config);
  const double factor = fields.number("factor", 1e-6, kMaxFactor)
                            .value_or(static_cast<double>(config.max_position_embeddings) /
                                      static_cast<double>(positions));
  const double usual =
      factor <= 1.0 || positions == 1
          ? 1.0
          : std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(positions)));
  scaling.attention_factor = fields.number("attention_factor", 1e-6, kMaxFactor).value_or(usual);
}

void read_scaling(const Fields& fields, ModelConfig& config, bool rotates_part) {
  read_rotary_dim(fields, config, rotates_part);
  const char* field = fields.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string type = fields.string(field).value_or("default");
  RopeScaling scaling;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = required_number(fields, "factor", 1e-6, kMaxFactor);
  } else if (type == "yarn") {
    read_yarn(fields, config, scaling);
  } else if (type == "llama3") {
    read_llama3(fields, config, scaling);
  } else if (type == "longrope") {
    read_longrope(fields, config, scaling);
  } else if (type != "default" && type != "none") {
    fields.unsupported(field, "'default', 'linear', 'yarn', 'llama3' or 'longrope'");
  }
  config.rope_scaling = std::move(scaling);
}

}  // namespace

void read_rope(const Fields& fields, ModelConfig& config, bool rotates_part) {
  const auto theta = fields.number("rope_theta", 1.0, kMaxTheta);
  config.rope_theta = theta.value_or(1e4);
  read_rotary_dim(fields, config, rotates_part);
  if (const auto scaling = fields.object("rope_scaling"))
    read_scaling(*scaling, config, rotates_part);
  const auto rope = fields.object("rope_parameters");
  if (!rope) return;
  for (const auto& [name, value] : fields.find("rope_parameters")->items()) {
    if (value.is_object()) rope->unsupported(name, "one set of RoPE parameters for all layers");
  }
  if (const auto inner = rope->number("rope_theta", 1.0, kMaxTheta)) {
    if (theta && *theta != *inner) {
      rope->bad("rope_theta", "the same as the field 'rope_theta' outside");
    }
    config.rope_theta = *inner;
  }
  read_scaling(*rope, config, rotates_part);
}

}  // namespace vitrine::checkpoint

namespace vitrine {

double RopeScaling::latent_scale() const {
  if (mscale_all_dim == 0.0) return 1.0;
  const double weight = checkpoint::usual_attention_factor(factor, mscale_all_dim);
  return weight * weight;
}

}  // namespace vitrine
