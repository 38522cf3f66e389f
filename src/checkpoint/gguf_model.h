// SPDX-License-Identifier: Apache-2.0
// A GGUF file as the Hugging Face model folder that it was made from. Graphs are built from that
// form alone, so a GGUF file is one more source of the same models.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "config_limits.h"
#include "gguf_header.h"
#include "gguf_multipliers.h"

namespace vitrine::checkpoint {

struct GgufArchitecture;

/// A tensor's name in files, and Hugging Face's.
struct GgufName {
  std::string_view gguf, module;
  bool is_convolution = false;  ///< [channels, taps] in files, [channels, 1, taps] in folders
};

/// A file whose config.json is being written.
struct GgufSource {
  const GgufArchitecture& architecture;
  const GgufMetadata& metadata;
  const std::vector<TensorInfo>& tensors;  ///< mapped ones, in order of name
  const std::vector<float>& rope_factors;  ///< values of `rope_freqs.weight`; empty: there is none

  /// Returns the key of that name among the architecture's.
  std::string key(std::string_view name) const;
  /// Returns the tensor of that Hugging Face name, or null.
  const TensorInfo* tensor(const std::string& name) const;
};

using OrderedJson = nlohmann::ordered_json;

/// Writes what the config.json of most decoders says: heads, biases, RoPE, the feed-forward block
/// and the router. The sizes, epsilon and dtype are there. Throws kBadFile, kUnsupported naming the
/// key or the tensor.
void write_decoder_fields(const GgufSource& source, OrderedJson& config);
/// Writes which attention matrices have biases, as the architecture says it.
void write_biases(const GgufSource& source, OrderedJson& config);
/// Throws kUnsupported where a file without YaRN has keys of YaRN that other engines apply all the
/// same.
void refuse_yarn_values(const GgufSource& source);

/// How files of one architecture name and lay out what Hugging Face names and lays out differently.
struct GgufArchitecture {
  std::string_view name;             ///< `general.architecture`
  bool has_experts = false;          ///< the form for files with a count of experts, or without
  std::string_view model_type = {};  ///< in config.json; register_family() sets it
  std::string_view class_name;       ///< `architectures` of config.json
  bool interleaved_rope = false;     ///< rows of q and k stand as RoPE over neighbours needs them
  bool normalizes_top_k = false;     ///< what an absent `expert_weights_norm` means
  bool has_head_norms = false;       ///< queries and keys are normed
  bool has_output_bias = false;      ///< `attention_bias`: attention's four matrices have one
  std::string_view input_bias = {};  ///< field of config.json for q, k and v alone; empty: none
  bool has_expert_biases = false;    ///< experts and routers have biases
  bool has_post_norm = false;        ///< the norm before experts is named for what it stands behind
  bool rotates_part = false;         ///< `rope.dimension_count` may be less than a head
  bool has_latents = false;          ///< attention is latent
  bool has_linear_layers = false;    ///< layers may be Gated DeltaNet
  bool has_windows = false;          ///< some layers see `attention.sliding_window` positions alone
  bool has_one_width = false;        ///< `intermediate_size` is an expert's width
  /// config.json counts `num_local_experts`, and says no `norm_topk_prob`.
  bool has_local_experts = false;
  bool has_sigmoid = false;            ///< experts are scored by sigmoid; else softmax
  bool has_gate_up_experts = false;    ///< files hold gate and up of all experts in one tensor
  bool has_own_names_only = false;     ///< layers have `layer_names`, experts and nothing else
  std::string_view correction = {};    ///< added to scores for the choice; empty: nothing is
  std::string_view shared_block = {};  ///< prefix of shared experts
  std::string_view block = "mlp";      ///< the feed-forward block of a layer with experts; or none
  std::string_view router = "mlp.gate";
  std::string_view dense_gate = "mlp.gate_proj";  ///< module of a layer without experts
  std::string_view gate = "gate_proj", up = "up_proj",
                   down = "down_proj";  ///< modules of an expert
  GgufName final_norm = {"output_norm.weight", "model.norm.weight"};
  /// Names that other architectures do not have, or have for other tensors: those of the model, and
  /// those of a layer, behind its number.
  std::span<const GgufName> model_names = {}, layer_names = {};
  /// Keys that it computes with, which gguf_neutral.cc refuses for others.
  std::span<const std::string_view> own_keys = {};
  /// Writes key-value heads where layers differ in them, and returns their number; null: all have
  /// the same. `layers` are those of the model.
  int64_t (*write_kv_heads)(const GgufSource& source, int64_t layers,
                            OrderedJson& config) = nullptr;
  /// Writes its fields of config.json.
  void (*write_config)(const GgufSource& source, OrderedJson& config) = write_decoder_fields;
};

/// Returns the tensor of that name among mapped ones, in order of name; or null.
const TensorInfo* find_tensor(const std::vector<TensorInfo>& tensors, const std::string& name);

/// Finds the form of a file by its metadata, and by tensors as files name them. Throws kBadFile, or
/// kUnsupported naming the architectures there are.
const GgufArchitecture& find_gguf_architecture(const GgufMetadata& metadata,
                                               const std::vector<TensorInfo>& tensors);

/// Renames the tensors, splits the stacked experts and marks what reads in another order or times a
/// multiplier. Tensors that only the config needs (`rope_freqs.weight`) keep their names. Throws
/// kUnsupported for a tensor that the architecture doesn't have: leaving it out would compute
/// another model.
std::vector<TensorInfo> map_gguf_tensors(const GgufArchitecture& architecture,
                                         const GgufMetadata& metadata,
                                         std::vector<TensorInfo> tensors,
                                         const Multipliers& multipliers,
                                         const std::vector<std::string>& paths);

/// Returns what such a file calls a tensor that map_gguf_tensors named; the name itself where it
/// knows none.
std::string gguf_tensor_name(const GgufArchitecture& architecture, std::string_view name);

/// Throws kUnsupported for a key whose value asks for a computation that no architecture here has.
void refuse_other_models(const GgufArchitecture& architecture, const GgufMetadata& metadata);

/// Writes values that change nothing for keys which a file does not ask for, where a folder of the
/// family that leaves them out means something else.
void write_plain_values(nlohmann::ordered_json& config);

/// Returns whether a file with latent attention scores experts as this form's family does.
bool fits_scores(const GgufArchitecture& architecture, const GgufMetadata& metadata,
                 const std::vector<TensorInfo>& tensors);
/// Writes the fields of latent attention, of so many heads. Returns the elements of a head that are
/// rotated.
int64_t write_latent_attention(const GgufSource& source, int64_t heads, OrderedJson& config);
/// Writes what YaRN does to the scale of latent attention.
void write_latent_yarn(const GgufSource& source, OrderedJson& yarn);
/// Writes which layers are Gated DeltaNet, their sizes, and how the file holds their weights.
void write_linear_layers(const GgufSource& source, int64_t layers, OrderedJson& config);

/// Makes config.json.
std::string gguf_config_json(const GgufSource& source);
/// Makes generation_config.json; empty where the file says nothing for it.
std::string gguf_generation_config_json(const GgufMetadata& metadata);

/// Makes tokenizer.json; empty where the file has no tokenizer.
std::string gguf_tokenizer_json(const GgufMetadata& metadata);
/// Makes tokenizer_config.json: chat templates and special tokens.
std::string gguf_tokenizer_config_json(const GgufMetadata& metadata);

}  // namespace vitrine::checkpoint
