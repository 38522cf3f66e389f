// SPDX-License-Identifier: Apache-2.0
// Latent attention in GGUF files (deepseek2): its widths, and which family a file is of.
#include <algorithm>
#include <cmath>

#include "gguf_model.h"

namespace vitrine::checkpoint {

bool fits_scores(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                 const std::vector<TensorInfo>& tensors) {
  const std::string prefix = std::string(architecture.name) + ".";
  const int64_t gating = metadata.integer(prefix + "expert_gating_func", 0, 100).value_or(0);
  if (gating != 0) return architecture.has_sigmoid == (gating == 2);
  // Files without the key are DeepSeek-V2's, unless they correct scores.
  const bool has_correction = std::ranges::any_of(
      tensors, [](const TensorInfo& info) { return info.name.ends_with(".exp_probs_b.bias"); });
  return architecture.has_sigmoid == has_correction;
}

int64_t write_latent_attention(const GgufSource& source, int64_t heads, OrderedJson& config) {
  const GgufMetadata& metadata = source.metadata;
  const std::string prefix = source.key("");
  const auto width = [&](const char* name) {
    return metadata.integer(prefix + name, 1, kMaxWidth);
  };
  const int64_t latent = metadata.required_integer(prefix + "attention.kv_lora_rank", 1, kMaxWidth);
  const int64_t rotary = metadata.required_integer(prefix + "rope.dimension_count", 1, kMaxWidth);
  config["kv_lora_rank"] = latent;
  if (const auto rank = metadata.integer(prefix + "attention.q_lora_rank", 0, kMaxWidth);
      rank && *rank > 0) {
    config["q_lora_rank"] = *rank;
  }
  config["qk_rope_head_dim"] = rotary;
  // Files whose halves stand apart have a stored key's widths, and a head's beside them.
  const auto key = width("attention.key_length_mla"), value = width("attention.value_length_mla");
  const std::string key_name = prefix + (key ? "attention.key_length_mla" : "attention.key_length");
  const int64_t key_length = key ? *key : metadata.required_integer(key_name, 1, kMaxWidth);
  if (key_length <= rotary) {
    metadata.bad(key_name, "more than the " + std::to_string(rotary) + " rotated elements");
  }
  for (const auto& [name, length] :
       {std::pair{"attention.key_length", latent + rotary}, {"attention.value_length", latent}}) {
    if (!key || !value || width(name).value_or(length) == length) continue;
    metadata.bad(prefix + name, std::to_string(length) + ", of the latent that is stored");
  }
  config["qk_nope_head_dim"] = key_length - rotary;
  config["v_head_dim"] =
      value ? *value : metadata.required_integer(prefix + "attention.value_length", 1, kMaxWidth);
  config["num_key_value_heads"] = heads;
  config["attention_bias"] = false;
  config["first_k_dense_replace"] = 0;  // the tensors say which layers are dense
  return rotary;
}

void write_latent_yarn(const GgufSource& source, OrderedJson& yarn) {
  const std::string key = source.key("rope.scaling.yarn_log_multiplier");
  const double multiplier = source.metadata.number(key, 0.0, 1e6).value_or(0.0);
  if (multiplier == 0.0) return;
  // Files have one number for both: cosine and sine stay as they are. It is a tenth of the
  // config's, in float32, of which these are all the digits.
  yarn["mscale"] = yarn["mscale_all_dim"] = std::round(multiplier * 1e7) / 1e6;
}

}  // namespace vitrine::checkpoint
