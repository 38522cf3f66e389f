// SPDX-License-Identifier: Apache-2.0
// The room `compress`: from a checkpoint to a smaller one, with a manifest of how it was made.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// What an evaluation found; goes into the manifest. Perplexities are exp of the mean negative
/// log-probability (natural log) per token; the divergence is in nats per token.
struct QuantizeEvaluation {
  std::string text_name;           ///< what the text is called (a file name, no path)
  std::string text_sha256;         ///< of its bytes
  int64_t num_tokens = 0;          ///< tokens that were predicted
  double source_perplexity = 0.0;  ///< of the model that was read
  double result_perplexity = 0.0;  ///< of the model that was made
  double mean_kl = 0.0;            ///< mean over tokens of KL(source || result)
};

/// How far a quantization is.
struct QuantizeProgress {
  /// "widening" (of 8-bit floats), "widths" (parts of a mixture are measured), "layers" (of a
  /// calibration), "tensors" (that are written); empty while the source is hashed.
  std::string_view stage = {};
  int64_t done = 0;              ///< parts, layers or tensors of the stage
  int64_t total = 0;             ///< of them
  std::string_view tensor = {};  ///< that comes next
  /// Seconds that the rest of the stage takes at the pace so far; negative: not known yet.
  double seconds_left = -1;
  /// Not empty: one line on layers that an earlier run kept; told once.
  std::string_view note = {};
};

/// How a checkpoint is quantized.
struct QuantizeOptions {
  /// A name of the quant room's registry; or "mixed:3.5", for which each part of a layer becomes
  /// int3, int4 or int8, by what that does to the predictions on `calibration`, so that the layers'
  /// matrices take so many bits a weight at most; "mixed:3.5:experts" gives each expert widths of
  /// its own where that loses less.
  std::string scheme = "int4";
  /// Whether "mixed:…" counts experts as often as tokens are routed to one, so that the budget is
  /// one of bytes that a token reads.
  bool mixed_by_use = false;
  int group_size = 32;  ///< 32, 64 or 128; of no effect where the scheme has its own
  /// How numbers are chosen: "rtn", each the nearest to its weight; "gptq" (Frantar et al. 2022),
  /// which makes up for each weight's error in those behind it, by what `calibration` multiplies
  /// them with; "awq" (Lin et al. 2023), which makes channels with large inputs larger before they
  /// are rounded; "smoothquant" (Xiao et al. 2022), which makes large inputs smaller for schemes
  /// that round these, too. Matrices that the calibration does not reach are rounded to the
  /// nearest, which the report says.
  std::string method = "rtn";
  /// Token ids of texts, each a context of its own. They go through the model layer by layer, on
  /// its fused kernels, behind the layers that are quantized already. Memory holds one layer's
  /// inputs, for each token four bytes times the widths of what its matrices read, and with "awq",
  /// "smoothquant" and "mixed:…" a norm's, or a part's, weights in float32. A model of 8-bit
  /// floats is written beside `out` in 16 bits for it, and goes when its layers are done.
  std::vector<std::vector<int32_t>> calibration = {};
  /// The exponent of "smoothquant", 0 to 1; 0: the best of 0.4 to 0.9, and norms stay where none
  /// helps.
  double smoothing = 0;
  int threads = 0;               ///< of a calibration; 0: all. The result hangs on it in no bit
  bool lenient_weights = false;  ///< EngineOptions::lenient_weights, of a calibration
  /// The share of the layers' quantized matrices that the calibration must reach; below it nothing
  /// is written.
  double least_reached = 0;
  bool quantize_head = true;  ///< the output head in int8, same group size, with "fp8" in fp8, and
                              ///< as it is with 4-bit floats and schemes that round activations;
                              ///< false: left as is
  std::string tool_version;   ///< recorded in the manifest
  std::string instruction_set;  ///< recorded in the manifest: what this machine ran
  std::string source_name;      ///< recorded in the manifest; empty: last part of the path
  /// True keeps the layers that a calibration has finished beside `out`, in the folder
  /// `.NAME.tmp-layers`, where the run is killed, cancelled, or the disk or memory is full; the
  /// same call then goes on behind them, and gives the same bytes. What they hold for is the
  /// source's files, the calibration, the options that their numbers hang on, and the library's
  /// build: with others the call begins anew. They take as much as these layers of the result, and
  /// go when it takes its place, or when it is refused.
  bool keep_layers = false;
  /// Called before each part, layer, tensor and block of one. May throw: nothing is left but what
  /// `keep_layers` keeps.
  std::function<void(const QuantizeProgress& progress)> progress;
  /// Called with the finished folder (under its temporary name) before the manifest is written and
  /// the folder takes its place. May throw: nothing is left behind.
  std::function<std::optional<QuantizeEvaluation>(const std::string& result_folder)> evaluate;
  /// Called behind `evaluate`, with that folder. Returns a JSON object whose members the manifest
  /// takes: "expires", "corpus", "gate", "adapters" … May throw: nothing is left behind.
  std::function<std::string(const std::string& result_folder)> facts = {};
  /// Called with the folder when its manifest stands there, before it takes its place: to sign it.
  /// May throw: nothing is left behind.
  std::function<void(const std::string& result_folder)> finish = {};
};

/// One quantized tensor.
struct QuantizedTensorReport {
  std::string name;                   ///< of the module: "model.layers.0.self_attn.q_proj"
  int bits = 0;                       ///< of a stored weight
  int group_size = 0;                 ///< columns that share a scale; 0: all of a row
  double mean_absolute_error = 0.0;   ///< mean of |weight - dequantized|
  double worst_absolute_error = 0.0;  ///< largest |weight - dequantized|
  /// Rows of the calibration that it was multiplied with; 0: it was rounded to the nearest.
  int64_t calibration_rows = 0;
  double shrinkage = 0.0;  ///< share of all tokens' rows in the products of an expert's inputs
  double damping = 0.0;    ///< of the mean of the products' diagonal, added to it
  double loss = 0.0;       ///< sum over rows of squared errors of the outputs, by those products
};

/// One tensor that was copied as it is.
struct UnquantizedTensorReport {
  std::string name;    ///< of the tensor
  std::string reason;  ///< "router", "norm", "embedding", "the group of 128 does not divide 96 …"
};

/// What quantize_checkpoint() did.
struct QuantizeReport {
  std::vector<QuantizedTensorReport> quantized;      ///< in the order of the source
  std::vector<UnquantizedTensorReport> unquantized;  ///< in the order of the source
  uint64_t source_bytes = 0;                         ///< of all tensors read
  uint64_t result_bytes = 0;                         ///< of all tensors written
  int64_t layers_taken_up = 0;  ///< those of an earlier run (QuantizeOptions::keep_layers)
  std::optional<QuantizeEvaluation> evaluation;  ///< what `evaluate` returned
};

/// Quantizes the projections of the checkpoint folder `in` into the new folder `out`, in
/// compressed-tensors' `pack-quantized` layout, or with "fp8" in its `float-quantized`. The model's
/// own ops say which matrices these are: those of attention (latent attention and Gated DeltaNet
/// too), experts, shared experts and dense feed-forward blocks, and of layers that draft (MTP).
///
/// Router, norms, biases, embedding and shared_expert_gate stay as they are, and so do latent
/// attention's kv_b_proj, which is multiplied as floats, what makes the strengths and decays of
/// Gated DeltaNet's states, and what the model does not read. The output head becomes int8 (tied
/// embeddings: a separate `lm_head`, and `tie_word_embeddings` false in the new config). A matrix
/// whose columns the group doesn't divide stays as it is; where those are most of the weights and a
/// smaller group would take more, kInvalidArgument names it. A source of 8-bit floats is taken as
/// their values times their scales in float32, rounded to the embedding's dtype, and what of it is
/// not quantized is written so. config.json, generation_config.json, tokenizer.json and
/// tokenizer_config.json come along; `vitrine_manifest.json` says how it was made, and of each
/// tensor that stays why. Its members are docs/compression.md's.
///
/// `out` appears whole or not at all. Without a calibration it streams in blocks of rows, with one
/// layer by layer: memory does not grow with the model's depth. The source is mapped meanwhile
/// where there is a calibration (MappedFileGuard). Throws kInvalidArgument (unknown scheme, method
/// or group size, a method without what it needs, `facts` that are no object or name what the
/// manifest has, `out` exists and isn't empty, another run keeps layers for `out`, `in` has
/// quantized integers), kUnsupported (a model_type that Vitrine doesn't run), and what
/// Checkpoint::open and the writer throw. Thread-safe.
VITRINE_API QuantizeReport quantize_checkpoint(const std::string& in, const std::string& out,
                                               const QuantizeOptions& options);

}  // namespace vitrine
