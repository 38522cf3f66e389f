// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters with made-up numbers for the models under test.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "tests/engine/engine_fixture.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {

/// One tensor of an adapter's file.
struct AdapterTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

inline std::vector<float> spread_values(size_t count, uint32_t seed, float size) {
  std::vector<float> values(count);
  uint32_t state = seed * 747796405u + 2891336453u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = size * (static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0F);
  }
  return values;
}

/// A module with both halves of its pair.
struct AdapterModule {
  std::string module;
  int64_t rows = 0, cols = 0;
};

inline std::vector<AdapterModule> attention_modules(const ModelConfig& config) {
  std::vector<AdapterModule> modules;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    const int64_t query = config.num_heads * config.head_dim;
    const int64_t key = config.num_kv_heads * config.head_dim;
    modules.push_back({prefix + "q_proj", query, config.hidden_size});
    modules.push_back({prefix + "k_proj", key, config.hidden_size});
    modules.push_back({prefix + "v_proj", key, config.hidden_size});
    modules.push_back({prefix + "o_proj", config.hidden_size, query});
  }
  return modules;
}

/// The routed experts of a layer, as PEFT names them; none where one tensor has all experts.
inline std::vector<AdapterModule> expert_modules(const ModelConfig& config, int layer) {
  std::vector<AdapterModule> modules;
  if (!config.is_sparse_layer(layer) || config.model_type == "granitemoe") return modules;
  const bool is_mixtral = config.model_type == "mixtral";
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    const std::string prefix = "model.layers." + std::to_string(layer) +
                               (is_mixtral ? ".block_sparse_moe" : ".mlp") + ".experts." +
                               std::to_string(expert) + ".";
    const int64_t outer = config.hidden_size, inner = config.moe_intermediate_size;
    modules.push_back({prefix + (is_mixtral ? "w1" : "gate_proj"), inner, outer});
    modules.push_back({prefix + (is_mixtral ? "w3" : "up_proj"), inner, outer});
    modules.push_back({prefix + (is_mixtral ? "w2" : "down_proj"), outer, inner});
  }
  return modules;
}

/// Dense blocks, experts and routers, layer by layer.
inline std::vector<AdapterModule> block_modules(const ModelConfig& config) {
  std::vector<AdapterModule> modules;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const auto add_block = [&](const std::string& block, int64_t intermediate) {
      modules.push_back({prefix + block + "gate_proj", intermediate, config.hidden_size});
      modules.push_back({prefix + block + "up_proj", intermediate, config.hidden_size});
      modules.push_back({prefix + block + "down_proj", config.hidden_size, intermediate});
    };
    if (!config.is_sparse_layer(layer)) {
      add_block("mlp.", config.intermediate_size);
      continue;
    }
    const std::string router = config.model_type == "granitemoe" ? "block_sparse_moe.router.layer"
                               : config.model_type == "mixtral"  ? "block_sparse_moe.gate"
                               : config.model_type == "gpt_oss"  ? "mlp.router"
                                                                 : "mlp.gate";
    modules.push_back({prefix + router, config.num_experts, config.hidden_size});
    const std::vector<AdapterModule> experts = expert_modules(config, layer);
    modules.insert(modules.end(), experts.begin(), experts.end());
    if (config.shared_expert_intermediate_size > 0) {
      add_block(config.model_type == "glm4_moe" ? "mlp.shared_experts." : "mlp.shared_expert.",
                config.shared_expert_intermediate_size);
    }
  }
  return modules;
}

inline std::vector<AdapterModule> all_modules(const ModelConfig& config) {
  std::vector<AdapterModule> modules = attention_modules(config);
  const std::vector<AdapterModule> more = block_modules(config);
  modules.insert(modules.end(), more.begin(), more.end());
  return modules;
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string adapter_config(int64_t rank, double alpha, const std::string& more = "") {
  return R"({"peft_type": "LORA", "r": )" + std::to_string(rank) + R"(, "lora_alpha": )" +
         std::to_string(alpha) + R"(, "bias": "none", "target_modules": "all-linear")" + more + "}";
}

inline void write_adapter(const std::string& folder, const std::string& config,
                          const std::vector<AdapterTensor>& tensors) {
  std::filesystem::create_directories(folder);
  write_text(folder + "/adapter_config.json", config);
  SafetensorsWriter writer(folder + "/adapter_model.safetensors");
  for (const AdapterTensor& tensor : tensors) {
    writer.declare(tensor.name, DType::kF32, tensor.shape);
  }
  writer.begin();
  for (const AdapterTensor& tensor : tensors) {
    writer.write(tensor.name, std::as_bytes(std::span(tensor.values)));
  }
  writer.finish();
}

inline std::vector<AdapterTensor> adapter_tensors(const std::vector<AdapterModule>& modules,
                                                  int64_t rank, uint32_t seed, float size = 0.2F) {
  std::vector<AdapterTensor> tensors;
  for (const AdapterModule& module : modules) {
    const std::string name = "base_model.model." + module.module;
    tensors.push_back({name + ".lora_A.weight",
                       {rank, module.cols},
                       spread_values(static_cast<size_t>(rank * module.cols), ++seed * 7, size)});
    tensors.push_back({name + ".lora_B.weight",
                       {module.rows, rank},
                       spread_values(static_cast<size_t>(rank * module.rows), ++seed * 7, size)});
  }
  return tensors;
}

}  // namespace vitrine::testing
