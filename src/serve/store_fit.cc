// SPDX-License-Identifier: Apache-2.0
#include "serve/store_fit.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "vitrine/audit_log.h"
#include "vitrine/checkpoint.h"

namespace vitrine::serve {

namespace {

/// Hashes where each of a token's words lies and what it is.
std::string layout_hash(const AuditLayout& layout) {
  std::string text;
  const auto add = [&text](int64_t number) { text += std::to_string(number) + " "; };
  add(static_cast<int64_t>(layout.level));
  add(layout.token_words);
  add(layout.hidden_size);
  for (const AuditLayout::Layer& layer : layout.layers) {
    for (const int32_t number :
         {layer.layer, layer.residual_norm, layer.expert_ids, layer.expert_weights,
          layer.router_probs, layer.router_scores, layer.expert_norms, layer.top_k,
          layer.num_experts, static_cast<int32_t>(layer.router)}) {
      add(number);
    }
  }
  for (const AuditLayout::HiddenState& state : layout.hidden_states) {
    add(state.layer);
    add(state.values);
  }
  return sha256_of_text(text);
}

std::string hash_of_files(std::vector<std::string> files) {
  std::string text;
  std::ranges::sort(files);
  for (const std::string& file : files) text += sha256_of_file(file) + " ";
  return sha256_of_text(text);
}

/// The files of a PEFT folder, or of the folder of its weights.
std::string hash_of_adapter(const std::filesystem::path& given) {
  const bool is_file = given.extension() == ".safetensors";
  const std::filesystem::path folder = is_file ? given.parent_path() : given;
  const std::string weights =
      is_file ? given.string() : (folder / "adapter_model.safetensors").string();
  return hash_of_files({(folder / "adapter_config.json").string(), weights});
}

}  // namespace

StoreFit::StoreFit(Engine& engine, bool keeps_words)
    : weight_files_(engine::weight_files(engine)),
      config_(engine::config_text(engine)),
      sizes_(engine::image_sizes(engine)),
      layout_(engine.audit_layout()),
      keeps_words_(keeps_words),
      adapters_(engine.options().adapters),
      lora_(engine.options().lora) {
  const ModelSummary& model = engine.summary();
  const EngineOptions& options = engine.options();
  fields_ = {{"build", engine_build()},
             {"architecture", model.architecture},
             {"kernels", model.device + " " + model.kernels + " " + model.isa},
             {"kv_codecs", engine::codec_versions(engine)},
             {"rope_frequencies", std::string(dtype_name(options.rope_frequencies))},
             {"activation_dtype", std::string(dtype_name(options.activation_dtype))},
             {"block_size", std::to_string(sizes_.block_size)},
             {"block_bytes", std::to_string(sizes_.block_bytes)},
             {"window_bytes", std::to_string(sizes_.window_bytes)},
             {"state_bytes", std::to_string(sizes_.state_bytes)},
             {"window", std::to_string(sizes_.window)}};
  if (token_words() > 0) fields_.emplace_back("records", layout_hash(layout_));
}

std::string StoreFit::hash_adapter(int adapter) const {
  if (adapter >= 0) return hash_of_adapter(adapters_[static_cast<size_t>(adapter)]);
  std::string text;
  for (const auto& [folder, scale] : lora_) {
    text += hash_of_adapter(folder) + " " + std::to_string(std::bit_cast<uint32_t>(scale)) + " ";
  }
  return text.empty() ? "none" : sha256_of_text(text);
}

StoreFields StoreFit::fields(int adapter) {
  if (model_.empty()) {
    model_ = sha256_of_text(sha256_of_text(config_) + " " + hash_of_files(weight_files_));
  }
  StoreFields fields = fields_;
  fields.emplace_back("model", model_);
  fields.emplace_back("adapter", hash_adapter(adapter));
  return fields;
}

}  // namespace vitrine::serve
