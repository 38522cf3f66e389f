// SPDX-License-Identifier: Apache-2.0
// Private to the room: a GGUF file as the Hugging Face model folder that it was made from. The
// architectures above see only that form, so a GGUF is one more source of the same models.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "config_limits.h"
#include "gguf_header.h"

namespace vitrine::checkpoint {

/// A tensor's name in files, and Hugging Face's.
struct GgufName {
  std::string_view gguf, module;
  bool is_convolution = false;  ///< [channels, taps] in files, [channels, 1, taps] in folders
};

/// How files of one architecture name and lay out what Hugging Face names and lays out differently.
struct GgufArchitecture {
  std::string_view name;             ///< `general.architecture`
  bool has_experts = false;          ///< the row for files with a count of experts, or without
  std::string_view model_type;       ///< of config.json
  std::string_view class_name;       ///< `architectures` of config.json
  bool interleaved_rope = false;     ///< rows of q and k stand as RoPE over neighbours needs them
  bool normalizes_top_k = false;     ///< where `expert_weights_norm` is absent
  bool has_head_norms = false;       ///< norms of query and key
  bool has_output_bias = false;      ///< attention biases are all four or none, else q, k and v
  bool has_expert_biases = false;    ///< of the router too
  bool has_post_norm = false;        ///< the norm before experts is named for what it stands behind
  bool rotates_part = false;         ///< of a head, where `rope.dimension_count` says so
  bool has_latents = false;          ///< latent attention
  bool has_convolutions = false;     ///< layers without keys and values are short convolutions
  bool has_linear_layers = false;    ///< Gated DeltaNet
  std::string_view correction = {};  ///< of scores, for the choice; empty: probabilities are scores
  std::string_view shared_block = {};  ///< of shared experts
  std::string_view block = "mlp";      ///< the feed-forward block of a layer with experts; or none
  std::string_view router = "mlp.gate";
  std::string_view dense_gate = "mlp.gate_proj";  ///< of a layer without experts
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< of an expert
  /// Names that other architectures do not have, or have for other tensors: of the model, and of a
  /// layer behind its number.
  std::span<const GgufName> model_names = {}, layer_names = {};
};

/// The tensor of that name among mapped ones, in order of name; or null.
const TensorInfo* find_tensor(const std::vector<TensorInfo>& tensors, const std::string& name);

/// By the metadata, and tensors as files name them. Throws kBadFile, or kUnsupported naming the
/// ones there are.
const GgufArchitecture& find_gguf_architecture(const GgufMetadata& metadata,
                                               const std::vector<TensorInfo>& tensors);

/// Renames the tensors, splits the stacked experts and marks what reads in another order. Tensors
/// that only the config needs (`rope_freqs.weight`) keep their names. Throws kUnsupported for a
/// tensor that the architecture doesn't have: leaving it out would compute another model.
std::vector<TensorInfo> map_gguf_tensors(const GgufArchitecture& architecture,
                                         const GgufMetadata& metadata,
                                         std::vector<TensorInfo> tensors,
                                         const std::vector<std::string>& paths);

/// What such a file calls a tensor that map_gguf_tensors named; the name itself where it knows
/// none.
std::string gguf_tensor_name(const GgufArchitecture& architecture, std::string_view name);

/// Throws kUnsupported for a key whose value asks for a computation that no architecture here has.
void refuse_other_models(const GgufArchitecture& architecture, const GgufMetadata& metadata);

/// What a file does not ask for is not done: writes that for keys which a folder of the family may
/// leave out and mean something else.
void write_plain_values(nlohmann::ordered_json& config);

/// Of files with latent attention: whether they score experts as this row's family does.
bool fits_scores(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                 const std::vector<TensorInfo>& tensors);
/// The fields of latent attention, of so many heads, and those of its family's routing. Returns the
/// elements of a head that are rotated.
int64_t write_latent_attention(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                               int64_t heads, nlohmann::ordered_json& config);
/// What yarn does to the scale of latent attention.
void write_latent_yarn(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                       nlohmann::ordered_json& yarn);

/// Of files whose layers may be convolutions: which are, and what these are. Returns the key-value
/// heads of the others.
int64_t write_convolutions(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                           int64_t layers, nlohmann::ordered_json& config);
/// Of files with Gated DeltaNet: which of the layers keep a state, its sizes, and how the file
/// holds their weights.
void write_linear_layers(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                         int64_t layers, const std::vector<TensorInfo>& tensors,
                         nlohmann::ordered_json& config);

/// config.json and generation_config.json. `rope_factors`: the values of `rope_freqs.weight`, empty
/// where there is none. `tensors` are mapped ones, in order of name.
std::string gguf_config_json(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                             const std::vector<TensorInfo>& tensors,
                             const std::vector<float>& rope_factors);
std::string gguf_generation_config_json(const GgufMetadata& metadata);

/// tokenizer.json; empty where the file has no tokenizer.
std::string gguf_tokenizer_json(const GgufMetadata& metadata);
/// tokenizer_config.json: chat templates and special tokens.
std::string gguf_tokenizer_config_json(const GgufMetadata& metadata);

}  // namespace vitrine::checkpoint
