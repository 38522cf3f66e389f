// SPDX-License-Identifier: Apache-2.0
// What tensors of GGUF files are in a folder, and back.
#include <algorithm>
#include <array>
#include <charconv>

#include "gguf_model.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

/// Names between "blk.N." and ".weight" or ".bias", and the modules that they are.
constexpr std::array kLayerNames = {
    GgufName{"attn_norm", "input_layernorm"},
    GgufName{"attn_q", "self_attn.q_proj"},
    GgufName{"attn_k", "self_attn.k_proj"},
    GgufName{"attn_v", "self_attn.v_proj"},
    GgufName{"attn_output", "self_attn.o_proj"},
    GgufName{"attn_q_norm", "self_attn.q_norm"},
    GgufName{"attn_k_norm", "self_attn.k_norm"},
    GgufName{"ffn_norm", "post_attention_layernorm"},
    GgufName{"post_attention_norm", "post_attention_layernorm"},
    GgufName{"ffn_gate", "mlp.gate_proj"},
    GgufName{"ffn_up", "mlp.up_proj"},
    GgufName{"ffn_down", "mlp.down_proj"},
    GgufName{"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
};
/// Modules of latent attention. The matrix that makes keys and values stands whole, or as its
/// halves.
constexpr std::array kLatentNames = {
    GgufName{"attn_q_a", "self_attn.q_a_proj"},
    GgufName{"attn_q_a_norm", "self_attn.q_a_layernorm"},
    GgufName{"attn_q_b", "self_attn.q_b_proj"},
    GgufName{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    GgufName{"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    GgufName{"attn_kv_b", "self_attn.kv_b_proj"},
    GgufName{"attn_k_b", "self_attn.k_b_proj"},
    GgufName{"attn_v_b", "self_attn.v_b_proj"},
};
/// Modules of a layer that drafts, beside what every layer has.
constexpr std::array kDraftNames = {
    GgufName{"nextn.eh_proj", "eh_proj"},
    GgufName{"nextn.enorm", "enorm"},
    GgufName{"nextn.hnorm", "hnorm"},
    GgufName{"nextn.shared_head_norm", "shared_head.norm"},
    GgufName{"nextn.shared_head_head", "shared_head.head"},
    GgufName{"nextn.embed_tokens", "embed_tokens"},
};
/// Modules behind GgufArchitecture::shared_block.
constexpr std::array kSharedNames = {
    GgufName{"ffn_gate_shexp", "gate_proj"},
    GgufName{"ffn_up_shexp", "up_proj"},
    GgufName{"ffn_down_shexp", "down_proj"},
};

class TensorMapper {
 public:
  TensorMapper(const GgufArchitecture& architecture, const GgufMetadata& metadata,
               const Multipliers& multipliers, const std::vector<std::string>& paths)
      : architecture_(architecture), multipliers_(multipliers), paths_(paths) {
    const std::string prefix = std::string(architecture.name) + ".attention.";
    heads_ = metadata.uniform_integer(prefix + "head_count", 1, 8192).value_or(1);
    kv_heads_ = heads_;
    if (architecture.interleaved_rope) {
      kv_heads_ = metadata.uniform_integer(prefix + "head_count_kv", 1, 8192).value_or(heads_);
    }
    experts_ = metadata.integer(std::string(architecture.name) + ".expert_count", 0, kMaxExperts)
                   .value_or(0);
    layers_ =
        metadata.required_integer(std::string(architecture.name) + ".block_count", 1, kMaxLayers);
    further_layers_ =
        metadata.integer(std::string(architecture.name) + ".nextn_predict_layers", 0, layers_ - 1)
            .value_or(0);
  }

  void map(TensorInfo info) {
    if (const auto found = multipliers_.find(info.name);
        found != multipliers_.end() && found->second.size() == 1) {
      info.multiplier = found->second[0];
    }
    if (info.name == "token_embd.weight") return add(info, "model.embed_tokens.weight");
    if (info.name == architecture_.final_norm.gguf) {
      return add(info, std::string(architecture_.final_norm.module));
    }
    if (info.name == "output.weight") return add(info, "lm_head.weight");
    if (info.name == "rope_freqs.weight") return add(info, info.name);
    for (const GgufName& own : architecture_.model_names) {
      if (info.name == own.gguf) return add(info, std::string(own.module));
    }
    constexpr std::string_view kLayer = "blk.";
    const std::string_view name = info.name;
    int64_t layer = -1;
    const char* end = name.data() + name.size();
    const auto parsed =
        std::from_chars(name.data() + std::min(kLayer.size(), name.size()), end, layer);
    if (!name.starts_with(kLayer) || parsed.ec != std::errc() || layer < 0 || parsed.ptr == end ||
        *parsed.ptr != '.') {
      unknown(info);
    }
    if (layer >= layers_) {
      throw_bad_file(place(info) + " is of layer " + std::to_string(layer) +
                     "; expected layers below the " + std::to_string(layers_) + " of '" +
                     std::string(architecture_.name) + ".block_count'");
    }
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string part(parsed.ptr + 1, end);
    for (const GgufName& own : kDraftNames) {
      if (layer < layers_ - further_layers_ || part != std::string(own.gguf) + ".weight") continue;
      return add(info, prefix + std::string(own.module) + ".weight");
    }
    map_layer(info, prefix, part);
  }

  std::vector<TensorInfo> take() { return std::move(result_); }

 private:
  void map_layer(TensorInfo& info, const std::string& prefix, const std::string& name) {
    for (const GgufName& own : architecture_.layer_names) {
      if (name != own.gguf) continue;
      if (own.is_convolution && info.shape.size() == 2)
        info.shape.insert(info.shape.begin() + 1, 1);
      return add(info, prefix + std::string(own.module));
    }
    const size_t dot = name.rfind('.');
    const std::string base = name.substr(0, dot);
    const std::string suffix = dot == name.npos ? "" : name.substr(dot);
    if (suffix != ".weight" && suffix != ".bias") unknown(info);
    if (!architecture_.correction.empty() && name == "exp_probs_b.bias") {
      return add(info, prefix + std::string(architecture_.correction));
    }
    for (const GgufName& part : kSharedNames) {
      if (base != part.gguf || suffix != ".weight" || architecture_.shared_block.empty()) continue;
      return add(info, prefix + std::string(architecture_.shared_block) + "." +
                           std::string(part.module) + suffix);
    }
    if (architecture_.has_experts && (suffix == ".weight" || architecture_.has_expert_biases)) {
      if (base == "ffn_gate_inp") {
        return add(info, prefix + std::string(architecture_.router) + suffix);
      }
      const std::string block = prefix + std::string(architecture_.block) +
                                (architecture_.block.empty() ? "experts." : ".experts.");
      if (base == "ffn_gate_up_exps" && suffix == ".weight") return add_gate_and_up(info, block);
      for (const auto& [gguf, module] : {std::pair{"ffn_gate_", architecture_.gate},
                                         {"ffn_up_", architecture_.up},
                                         {"ffn_down_", architecture_.down}}) {
        const std::string end = "." + std::string(module) + suffix;
        if (base == std::string(gguf) + "exps") return add_experts(info, block, end);
      }
      if (add_single_expert(info, base, block)) return;
    }
    for (const GgufName& part : kLatentNames) {
      if (base != part.gguf || suffix != ".weight" || !architecture_.has_latents) continue;
      return add(info, prefix + std::string(part.module) + suffix);
    }
    if (architecture_.has_own_names_only) unknown(info);
    const auto* found = std::ranges::find(kLayerNames, base, &GgufName::gguf);
    const bool is_foreign =
        (base == "post_attention_norm" && !architecture_.has_post_norm) ||
        (architecture_.has_latents &&
         (base == "attn_k" || base == "attn_v" || suffix == ".bias")) ||
        (base == "ffn_gate_inp_shexp" && architecture_.shared_block != "mlp.shared_expert") ||
        ((base == "attn_q_norm" || base == "attn_k_norm") && !architecture_.has_head_norms);
    const bool is_bias_known = base == "attn_q" || base == "attn_k" || base == "attn_v" ||
                               (base == "attn_output" && architecture_.has_output_bias);
    if (found == kLayerNames.end() || is_foreign || (suffix == ".bias" && !is_bias_known)) {
      unknown(info);
    }
    if (base == "ffn_gate_inp_shexp" && info.shape.size() == 1) {
      info.shape.insert(info.shape.begin(), 1);
    }
    if (architecture_.interleaved_rope && (base == "attn_q" || base == "attn_k")) {
      const int64_t heads = base == "attn_q" ? heads_ : kv_heads_;
      if (info.shape[0] % heads != 0 || info.shape[0] / heads % 2 != 0) {
        throw_bad_file(place(info) + " has " + std::to_string(info.shape[0]) +
                       " rows; expected an even number for each of " + std::to_string(heads) +
                       " heads");
      }
      info.interleaved_head_rows = info.shape[0] / heads;
    }
    add(info, prefix + std::string(found->module) + suffix);
  }

  /// Adds the halves of a tensor that has for each expert the rows of the gate projection, then as
  /// many of the up projection.
  void add_gate_and_up(const TensorInfo& fused, const std::string& block) {
    if (fused.shape.size() != 3 || fused.shape[0] != experts_ || fused.shape[1] % 2 != 0) {
      throw_bad_file(place(fused) + " has the shape " + shape_text(fused.shape) + "; expected [" +
                     std::to_string(experts_) + ", 2 x rows, columns] for the experts of " +
                     expert_count());
    }
    for (const auto& [turn, module] :
         {std::pair{uint64_t{0}, architecture_.gate}, {1, architecture_.up}}) {
      TensorInfo half = fused;
      half.shape[1] /= 2;
      add_experts(half, block, "." + std::string(module) + ".weight", turn, 2);
    }
  }

  /// Adds every `turns`th part of the tensor that the shape describes, from `turn` on.
  void add_experts(const TensorInfo& stacked, const std::string& block, const std::string& end,
                   uint64_t turn = 0, uint64_t turns = 1) {
    const bool is_bias = end.ends_with(".bias");
    if (stacked.shape.size() != (is_bias ? 2 : 3) || stacked.shape[0] != experts_) {
      throw_bad_file(place(stacked) + " has the shape " + shape_text(stacked.shape) +
                     "; expected [" + std::to_string(experts_) +
                     (is_bias ? ", rows], a vector" : ", rows, columns], a matrix") +
                     " for each expert of " + expert_count());
    }
    const auto count = static_cast<uint64_t>(stacked.shape[0]);
    const auto multipliers = multipliers_.find(stacked.name);
    for (uint64_t expert = 0; expert < count; ++expert) {
      TensorInfo info = stacked;
      info.shape.erase(info.shape.begin());
      info.num_bytes /= count * turns;
      info.stored_bytes /= count * turns;
      info.file_offset += (expert * turns + turn) * info.stored_bytes;
      info.fused_from = stacked.name;
      if (multipliers != multipliers_.end()) info.multiplier = multipliers->second[expert];
      add(info, block + std::to_string(expert) + end);
    }
  }

  /// Adds "ffn_gate.3" and its like, of files from before the experts were stacked. Returns false
  /// for another tensor.
  bool add_single_expert(const TensorInfo& info, const std::string& base,
                         const std::string& block) {
    for (const auto& [gguf, module] : {std::pair{"ffn_gate.", architecture_.gate},
                                       {"ffn_up.", architecture_.up},
                                       {"ffn_down.", architecture_.down}}) {
      if (!base.starts_with(gguf)) continue;
      int64_t expert = -1;
      const char* begin = base.data() + std::string_view(gguf).size();
      const char* end = base.data() + base.size();
      const auto parsed = std::from_chars(begin, end, expert);
      if (parsed.ec != std::errc() || parsed.ptr != end || expert < 0) unknown(info);
      if (expert >= experts_) {
        throw_bad_file(place(info) + " is of expert " + std::to_string(expert) +
                       "; expected experts below the " + std::to_string(experts_) + " of " +
                       expert_count());
      }
      add(info, block + std::to_string(expert) + "." + std::string(module) + ".weight");
      return true;
    }
    return false;
  }

  void add(TensorInfo info, std::string name) {
    info.name = std::move(name);
    result_.push_back(std::move(info));
  }

  std::string expert_count() const {
    return "'" + std::string(architecture_.name) + ".expert_count'";
  }
  std::string place(const TensorInfo& info) const {
    return paths_[static_cast<size_t>(info.file_index)] + ": tensor " + quote_text(info.name);
  }

  [[noreturn]] void unknown(const TensorInfo& info) const {
    throw_unsupported(place(info) + " is not one that the architecture " +
                      std::string(architecture_.name) + " has; expected a " +
                      std::string(architecture_.model_type) + " model without it");
  }

  const GgufArchitecture& architecture_;
  const Multipliers& multipliers_;
  const std::vector<std::string>& paths_;
  int64_t heads_ = 1;
  int64_t kv_heads_ = 1;
  int64_t experts_ = 0;
  int64_t layers_ = 0;
  int64_t further_layers_ = 0;  // the last ones of these, which draft
  std::vector<TensorInfo> result_;
};

}  // namespace

std::vector<TensorInfo> map_gguf_tensors(const GgufArchitecture& architecture,
                                         const GgufMetadata& metadata,
                                         std::vector<TensorInfo> tensors,
                                         const Multipliers& multipliers,
                                         const std::vector<std::string>& paths) {
  TensorMapper mapper(architecture, metadata, multipliers, paths);
  for (TensorInfo& info : tensors) mapper.map(std::move(info));
  return mapper.take();
}

std::string gguf_tensor_name(const GgufArchitecture& architecture, std::string_view name) {
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name == architecture.final_norm.module) return std::string(architecture.final_norm.gguf);
  if (name == "lm_head.weight") return "output.weight";
  for (const GgufName& own : architecture.model_names) {
    if (name == own.module) return std::string(own.gguf);
  }
  constexpr std::string_view kLayers = "model.layers.";
  const size_t dot = name.find('.', kLayers.size()), end = name.rfind('.');
  if (!name.starts_with(kLayers) || dot == name.npos) return std::string(name);
  const std::string layer(name.substr(kLayers.size(), dot - kLayers.size()));
  for (const GgufName& own : architecture.layer_names) {
    if (name.substr(dot + 1) == own.module) return "blk." + layer + "." + std::string(own.gguf);
  }
  if (end <= dot) return std::string(name);
  const std::string_view module = name.substr(dot + 1, end - dot - 1);
  const auto named = [&](std::string_view base) {
    return "blk." + layer + "." + std::string(base) + std::string(name.substr(end));
  };
  for (const GgufName& part : kDraftNames) {
    if (module == part.module) return named(part.gguf);
  }
  if (!architecture.correction.empty() && name.ends_with(architecture.correction)) {
    return "blk." + layer + ".exp_probs_b.bias";
  }
  if (architecture.has_experts && module == architecture.router) return named("ffn_gate_inp");
  if (architecture.has_post_norm && module == "post_attention_layernorm") {
    return named("post_attention_norm");
  }
  for (const GgufName& part : kSharedNames) {
    if (module == std::string(architecture.shared_block) + "." + std::string(part.module)) {
      return named(part.gguf);
    }
  }
  if (architecture.has_latents) {
    const auto* latent = std::ranges::find(kLatentNames, module, &GgufName::module);
    if (latent != kLatentNames.end()) return named(latent->gguf);
  }
  const auto* found = std::ranges::find(kLayerNames, module, &GgufName::module);
  if (found != kLayerNames.end()) return named(found->gguf);
  const bool is_fused = architecture.has_gate_up_experts;
  for (const auto& [part, base] :
       {std::pair{architecture.gate, is_fused ? "ffn_gate_up_exps" : "ffn_gate_exps"},
        {architecture.up, is_fused ? "ffn_gate_up_exps" : "ffn_up_exps"},
        {architecture.down, "ffn_down_exps"}}) {
    if (name.find(".experts.") != module.npos && module.ends_with("." + std::string(part))) {
      return named(base);
    }
  }
  return std::string(name);
}

}  // namespace vitrine::checkpoint
