// SPDX-License-Identifier: Apache-2.0
// Small models and heads with random numbers, written as folders.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/checkpoint/folders.h"

namespace vitrine::testing {

constexpr int64_t kHidden = 24, kVocabulary = 67, kDraftVocabulary = 29, kDepth = 7;

/// What a model's heads go by.
struct HeadSizes {
  int64_t hidden = kHidden, vocabulary = kVocabulary, draft_vocabulary = kDraftVocabulary;
};

using Json = nlohmann::json;

struct HeadTensor {
  std::vector<int64_t> shape;
  std::vector<float> floats;
  std::vector<int64_t> integers;  // instead
};
using HeadTensors = std::map<std::string, HeadTensor>;

inline std::vector<float> random_floats(size_t count, uint32_t seed, float scale = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> floats(count);
  for (float& each : floats) each = normal(random);
  return floats;
}

inline void write_checkpoint(const std::string& folder, const Json& config,
                             const HeadTensors& tensors) {
  std::filesystem::create_directories(folder);
  write_bytes(folder + "/config.json", config.dump());
  SafetensorsWriter writer(folder + "/model.safetensors");
  for (const auto& [name, tensor] : tensors) {
    writer.declare(name, tensor.integers.empty() ? DType::kF32 : DType::kI64, tensor.shape);
  }
  writer.begin();
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, tensor.integers.empty() ? std::as_bytes(std::span(tensor.floats))
                                               : std::as_bytes(std::span(tensor.integers)));
  }
  writer.finish();
}

/// Adds one of random numbers.
inline void add_tensor(HeadTensors& tensors, const std::string& name, std::vector<int64_t> shape,
                       float scale = 0.3F) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const auto seed = static_cast<uint32_t>(std::hash<std::string>()(name));
  tensors[name] = {std::move(shape), random_floats(static_cast<size_t>(count), seed, scale), {}};
}

inline Json target_config() {
  return {{"model_type", "llama"},         {"vocab_size", kVocabulary}, {"hidden_size", kHidden},
          {"num_hidden_layers", kDepth},   {"num_attention_heads", 2},  {"intermediate_size", 20},
          {"max_position_embeddings", 64}, {"rms_norm_eps", 1e-5}};
}

/// What heads read of a model; its layers are not there.
inline void write_target(const std::string& folder) {
  HeadTensors tensors;
  add_tensor(tensors, "model.embed_tokens.weight", {kVocabulary, kHidden}, 1.0F);
  add_tensor(tensors, "model.norm.weight", {kHidden});
  add_tensor(tensors, "lm_head.weight", {kVocabulary, kHidden});
  write_checkpoint(folder, target_config(), tensors);
}

inline Json eagle_config(const HeadSizes& sizes = {}) {
  return {{"model_type", "llama"},
          {"vocab_size", sizes.vocabulary},
          {"hidden_size", sizes.hidden},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 6},
          {"intermediate_size", 20},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 64},
          {"mask_token_id", 5},
          {"draft_vocab_size", sizes.draft_vocabulary}};
}

/// EAGLE-3 of two layers; with a mask P-EAGLE.
inline HeadTensors eagle_tensors(bool has_mask = false, const HeadSizes& sizes = {}) {
  const int64_t hidden = sizes.hidden;
  HeadTensors tensors;
  add_tensor(tensors, "fc.weight", {hidden, 3 * hidden});
  add_tensor(tensors, "norm.weight", {hidden}, 1.0F);
  add_tensor(tensors, "lm_head.weight", {sizes.draft_vocabulary, hidden});
  std::vector<int64_t> offsets(static_cast<size_t>(sizes.draft_vocabulary));
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int64_t>(i);
  tensors["d2t"] = {{sizes.draft_vocabulary}, {}, offsets};
  for (const std::string name : {"midlayer.", "layers.1."}) {
    const int64_t width = name == "midlayer." ? 2 * hidden : hidden;
    if (name == "midlayer.") add_tensor(tensors, name + "hidden_norm.weight", {hidden}, 1.0F);
    add_tensor(tensors, name + "input_layernorm.weight", {hidden}, 1.0F);
    add_tensor(tensors, name + "post_attention_layernorm.weight", {hidden}, 1.0F);
    add_tensor(tensors, name + "self_attn.q_proj.weight", {24, width});
    add_tensor(tensors, name + "self_attn.k_proj.weight", {12, width});
    add_tensor(tensors, name + "self_attn.v_proj.weight", {12, width});
    add_tensor(tensors, name + "self_attn.o_proj.weight", {hidden, 24});
    add_tensor(tensors, name + "mlp.gate_proj.weight", {20, hidden});
    add_tensor(tensors, name + "mlp.up_proj.weight", {20, hidden});
    add_tensor(tensors, name + "mlp.down_proj.weight", {hidden, 20});
  }
  if (has_mask) add_tensor(tensors, "mask_hidden", {1, 1, 3 * hidden}, 1.0F);
  return tensors;
}

inline Json medusa_config() {
  return {{"model_type", "medusa"}, {"num_heads", 3}, {"num_hidden_layers", 1}};
}

inline HeadTensors medusa_tensors(const HeadSizes& sizes = {}) {
  HeadTensors tensors;
  for (const std::string head : {"0", "1", "2"}) {
    add_tensor(tensors, "blocks." + head + ".layers.0.weight", {sizes.hidden, sizes.hidden});
    add_tensor(tensors, "lm_heads." + head + ".weight", {sizes.vocabulary, sizes.hidden});
  }
  return tensors;
}

/// A folder with a model and heads of each kind, which vanishes with it.
class HeadFolders {
 public:
  HeadFolders() {
    write_target(target());
    write_checkpoint(heads("eagle3"), eagle_config(), eagle_tensors());
    write_checkpoint(heads("peagle"), eagle_config(), eagle_tensors(true));
    write_checkpoint(heads("medusa"), medusa_config(), medusa_tensors());
  }
  std::string target() const { return folder_ / "target"; }
  std::string heads(const std::string& kind) const { return folder_ / kind; }

 private:
  TemporaryFolder folder_;
};

}  // namespace vitrine::testing
