// SPDX-License-Identifier: Apache-2.0
// Folders of models that bring a layer for drafts.
#pragma once

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {

/// An oracle with a layer for drafts, which is a copy of one of its own.
struct MtpModel {
  std::string oracle, from, layer, joined, token_norm, state_norm, final_norm;
  float norm;  // a norm's weight that is 1
};
inline const std::vector<MtpModel>& mtp_models() {
  static const std::vector<MtpModel> all = {
      {"deepseek_v3", "model.layers.2.", "model.layers.3.", "model.layers.3.eh_proj.weight",
       "model.layers.3.enorm.weight", "model.layers.3.hnorm.weight",
       "model.layers.3.shared_head.norm.weight", 1.0F},
      {"qwen3_next", "model.layers.4.", "mtp.layers.0.", "mtp.fc.weight",
       "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.norm.weight",
       0.0F},
  };
  return all;
}

/// Returns the name of a tensor of the first layer as that of another one.
inline std::string named_for(std::string name, int layer) {
  const std::string first = "model.layers.3.";
  if (name.starts_with(first)) name[first.size() - 2] = static_cast<char>('3' + layer);
  return name;
}

/// Writes it. `is_simple`: attention and blocks add nothing, so that a token alone says what
/// follows it, and a layer, which lets its embedding through, knows that, too.
class MtpFolder {
 public:
  MtpFolder(const MtpModel& model, bool is_simple, int layers = 1) {
    const Checkpoint source = Checkpoint::open(oracle_folder(model.oracle));
    auto config = nlohmann::json::parse(source.config_json());
    if (model.joined.starts_with("model.")) config["num_nextn_predict_layers"] = layers;
    config["dtype"] = "float32";
    write_bytes(folder_ / "config.json", config.dump());
    const auto hidden = config.at("hidden_size").get<size_t>();
    std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> tensors;
    for (const TensorInfo& info : source.tensors()) {
      std::vector<float> values = source.read_f32(info);
      const bool is_output = info.name.ends_with("o_proj.weight") ||
                             info.name.ends_with("out_proj.weight") ||
                             info.name.ends_with("down_proj.weight");
      if (is_simple && is_output) std::ranges::fill(values, 0.0F);
      for (int layer = 0; layer < layers && info.name.starts_with(model.from); ++layer) {
        const std::string name = model.layer + info.name.substr(model.from.size());
        tensors[named_for(name, layer)] = {info.shape, values};
      }
      tensors[info.name] = {info.shape, std::move(values)};
    }
    const auto size = static_cast<int64_t>(hidden);
    std::mt19937 random(5);
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<float> joined(2 * hidden * hidden);
      std::normal_distribution<float> normal(0.0F, 0.15F);
      for (float& value : joined) value = is_simple ? 0.0F : normal(random);
      for (size_t i = 0; i < hidden; ++i) joined[i * 2 * hidden + i] += 1.0F;
      tensors[named_for(model.joined, layer)] = {{size, 2 * size}, joined};
      const std::vector<float> norm(hidden, model.norm);
      tensors[named_for(model.token_norm, layer)] = {{size}, norm};
      tensors[named_for(model.state_norm, layer)] = {{size}, norm};
      tensors[named_for(model.final_norm, layer)] = tensors.at("model.norm.weight");
    }
    SafetensorsWriter writer(folder_ / "model.safetensors");
    for (const auto& [name, tensor] : tensors) writer.declare(name, DType::kF32, tensor.first);
    writer.begin();
    for (const auto& [name, tensor] : tensors) {
      writer.write(name, std::as_bytes(std::span(tensor.second)));
    }
    writer.finish();
  }
  std::string path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace vitrine::testing
