// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet in GGUF files (qwen3next, qwen35, qwen35moe): which layers keep a state, and
// its sizes.
#include <algorithm>

#include "gguf_model.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

/// Returns for each layer whether it keeps a state.
std::vector<bool> read_layers(const std::string& prefix, const GgufMetadata& metadata,
                              int64_t layers) {
  std::vector<bool> linear;
  const std::string flags = prefix + "attention.recurrent_layers";
  if (const GgufArray* array = metadata.array(flags, GgufType::kBool)) {
    // Flags of layers that only draft may stand behind.
    if (array->count < static_cast<uint64_t>(layers)) {
      metadata.bad(flags, "a boolean for each of " + std::to_string(layers) + " layers");
    }
    for (int64_t i = 0; i < layers; ++i) {
      linear.push_back(array->bytes[static_cast<size_t>(i)] != 0);
    }
    return linear;
  }
  const int64_t interval =
      metadata.integer(prefix + "full_attention_interval", 1, kMaxLayers).value_or(4);
  for (int64_t layer = 0; layer < layers; ++layer) linear.push_back((layer + 1) % interval != 0);
  return linear;
}

}  // namespace

void write_linear_layers(const GgufSource& source, int64_t layers, OrderedJson& config) {
  const GgufMetadata& metadata = source.metadata;
  const std::string prefix = source.key("");
  const std::vector<bool> linear = read_layers(prefix, metadata, layers);
  if (std::ranges::find(linear, false) == linear.end()) {
    const bool has_flags = metadata.contains(prefix + "attention.recurrent_layers");
    metadata.unsupported(
        prefix + (has_flags ? "attention.recurrent_layers" : "full_attention_interval"),
        "one of " + std::to_string(layers) + " layers or more with keys and values");
  }
  for (const bool is_linear : linear) {
    config["layer_types"].push_back(is_linear ? "linear_attention" : "full_attention");
  }
  const auto size = [&](const char* name, int64_t most) {
    return metadata.required_integer(prefix + "ssm." + name, 1, most);
  };
  const int64_t key_heads = size("group_count", kMaxHeads);
  const int64_t value_heads = size("time_step_rank", kMaxHeads);
  const int64_t values = size("inner_size", kMaxWidth);
  if (value_heads % key_heads != 0) {
    metadata.bad(prefix + "ssm.time_step_rank",
                 "a multiple of the " + std::to_string(key_heads) + " key heads (ssm.group_count)");
  }
  if (values % value_heads != 0 || values / value_heads > kMaxLinearHeadWidth) {
    metadata.bad(prefix + "ssm.inner_size", "at most " + std::to_string(kMaxLinearHeadWidth) +
                                                " for each of " + std::to_string(value_heads) +
                                                " value heads (ssm.time_step_rank)");
  }
  config["linear_num_key_heads"] = key_heads;
  config["linear_num_value_heads"] = value_heads;
  config["linear_key_head_dim"] = size("state_size", kMaxLinearHeadWidth);
  config["linear_value_head_dim"] = values / value_heads;
  config["linear_conv_kernel_dim"] = size("conv_kernel", kMaxLinearTaps);
  const auto holds = [&](std::string_view end) {
    return std::ranges::any_of(source.tensors,
                               [end](const TensorInfo& info) { return info.name.ends_with(end); });
  };
  const bool is_whole = holds(".linear_attn.in_proj_qkvz.weight");
  if (is_whole && holds(".linear_attn.in_proj_qkv.weight")) {
    throw_unsupported(metadata.file() +
                      ": holds both 'ssm_in' and 'attn_qkv'; expected one of them in all layers");
  }
  config["linear_layout"] = is_whole ? "converted_whole" : "converted";
}

}  // namespace vitrine::checkpoint
