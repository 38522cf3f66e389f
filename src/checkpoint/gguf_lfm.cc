// SPDX-License-Identifier: Apache-2.0
// Short convolutions in GGUF files (lfm2moe): layers without key-value heads.
#include "gguf_model.h"

namespace vitrine::checkpoint {
int64_t write_convolutions(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                           int64_t layers, nlohmann::ordered_json& config) {
  const std::string prefix = std::string(architecture.name) + ".";
  const std::string heads_key = prefix + "attention.head_count_kv";
  const std::vector<int64_t> heads = metadata.integers(heads_key, 0, kMaxHeads);
  if (static_cast<int64_t>(heads.size()) != layers) {
    metadata.bad(heads_key, "a number for each of " + std::to_string(layers) + " layers");
  }
  int64_t kv_heads = 0;
  auto types = nlohmann::ordered_json::array();
  for (const int64_t count : heads) {
    if (count != 0 && kv_heads != 0 && count != kv_heads) {
      metadata.unsupported(heads_key, "0 or the same number in every layer");
    }
    if (count != 0) kv_heads = count;
    types.push_back(count == 0 ? "conv" : "full_attention");
  }
  if (kv_heads == 0) metadata.unsupported(heads_key, "heads in a layer or more");
  config["layer_types"] = std::move(types);
  config["conv_L_cache"] =
      metadata.required_integer(prefix + "shortconv.l_cache", 2, kMaxLinearTaps);
  config["conv_bias"] = false;
  config["norm_eps"] = config["rms_norm_eps"];
  config["num_dense_layers"] = 0;  // the tensors say which layers are dense
  return kv_heads;
}

}  // namespace vitrine::checkpoint
