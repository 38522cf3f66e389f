// SPDX-License-Identifier: Apache-2.0
#include "gguf_export.h"

#include <set>

#include "family.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

/// A form whose keys and names are those of most decoders: what others have beside them is not
/// written.
bool is_plain(const GgufArchitecture& form) {
  return !form.has_latents && !form.has_linear_layers && !form.has_windows && !form.rotates_part &&
         !form.has_own_names_only && !form.has_gate_up_experts && !form.has_expert_biases &&
         !form.has_sigmoid && form.correction.empty() && form.own_keys.empty() &&
         form.model_names.empty() && form.layer_names.empty() && form.write_kv_heads == nullptr &&
         form.write_config == write_decoder_fields;
}

std::string plain_families() {
  std::set<std::string_view> names;
  for (const Family* family : all_families()) {
    for (const GgufArchitecture& form : family->gguf_forms) {
      if (is_plain(form)) names.insert(form.model_type);
    }
  }
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

/// Names what a model has that files of plain forms do not say; empty: nothing.
std::string special_part(const GgufArchitecture& form, const ModelConfig& config) {
  using Kind = RopeScaling::Kind;
  if (config.rope_scaling.kind != Kind::kNone && config.rope_scaling.kind != Kind::kLinear) {
    return "rope_scaling other than linear";
  }
  for (const int64_t window : config.windows) {
    if (window > 0) return "sliding windows";
  }
  for (const bool rotates : config.rotates) {
    if (!rotates) return "layers without RoPE";
  }
  if (config.num_draft_layers > 0) return "layers that draft";
  if (config.embedding_multiplier != 1 || config.residual_multiplier != 1 ||
      config.logits_scaling != 1 || config.attention_multiplier || config.clip_qkv) {
    return "multipliers or clipped queries";
  }
  if (config.routed_scaling_factor != 1 || config.router_groups > 1) return "groups of experts";
  if (form.has_experts && (config.decoder_sparse_step != 1 || !config.mlp_only_layers.empty())) {
    return "dense layers among sparse ones";
  }
  if (form.has_experts && config.norm_topk_prob &&
      *config.norm_topk_prob != form.normalizes_top_k && !form.has_local_experts) {
    return "norm_topk_prob " + std::string(*config.norm_topk_prob ? "true" : "false") +
           ", where its files mean the other";
  }
  return "";
}

}  // namespace

const GgufArchitecture& gguf_form_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  const std::string place = checkpoint.path() + ": model_type " + quote_text(config.model_type);
  const Family* family = find_family(config.model_type);
  if (family != nullptr) {
    for (const GgufArchitecture& form : family->gguf_forms) {
      if (form.has_experts != (config.num_experts > 0) || !is_plain(form)) continue;
      const std::string special = special_part(form, config);
      if (special.empty()) return form;
      throw_unsupported(place + " has " + special +
                        ", which is not written to GGUF files; expected a model without");
    }
  }
  throw_unsupported(place + " is not written to GGUF files; expected one of " + plain_families());
}

void set_model_keys(const GgufArchitecture& form, const ModelConfig& config,
                    const std::string& name, uint32_t file_type, GgufWriter& writer) {
  const auto key = [&](std::string_view part) {
    return std::string(form.name) + "." + std::string(part);
  };
  const auto set = [&](std::string_view part, int64_t value) {
    writer.set_u32(key(part), static_cast<uint64_t>(value));
  };
  writer.set_string("general.architecture", form.name);
  writer.set_string("general.type", "model");
  writer.set_string("general.name", name);
  writer.set_u32("general.file_type", file_type);
  writer.set_u32("general.quantization_version", 2);
  set("block_count", config.num_layers);
  set("context_length", config.max_position_embeddings);
  set("embedding_length", config.hidden_size);
  set("feed_forward_length",
      form.has_one_width ? config.moe_intermediate_size : config.intermediate_size);
  set("vocab_size", config.vocab_size);
  set("attention.head_count", config.num_heads);
  set("attention.head_count_kv", config.num_kv_heads);
  set("attention.key_length", config.head_dim);
  set("attention.value_length", config.head_dim);
  writer.set_f32(key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
  set("rope.dimension_count", config.head_dim);
  writer.set_f32(key("rope.freq_base"), config.rope_theta);
  if (config.rope_scaling.kind == RopeScaling::Kind::kLinear) {
    writer.set_string(key("rope.scaling.type"), "linear");
    writer.set_f32(key("rope.scaling.factor"), config.rope_scaling.factor);
  }
  if (!form.has_experts) return;
  set("expert_count", config.num_experts);
  set("expert_used_count", config.num_experts_per_token);
  set("expert_feed_forward_length", config.moe_intermediate_size);
  if (config.shared_expert_intermediate_size > 0) {
    set("expert_shared_feed_forward_length", config.shared_expert_intermediate_size);
  }
}

}  // namespace vitrine::checkpoint
