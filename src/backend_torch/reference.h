// SPDX-License-Identifier: Apache-2.0
// The reference path: the same graph through plain ATen calls on any device (CPU, CUDA, MPS).
//
// No call here may read a value back or learn a shape from a value; float64 is not used, since MPS
// has none.
#pragma once

#include <ATen/ATen.h>

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "backend_torch/tensor_adapters.h"
#include "backend_torch/tensor_weights.h"
#include "ops/graph.h"
#include "ops/readback.h"
#include "ops/taps.h"

namespace vitrine::backend_torch {

/// One sequence's part of a step.
struct ReferenceSpan {
  int64_t first_token = 0;  // in the step
  int64_t num_tokens = 0;
  int64_t past = 0;    // positions before the first
  at::Tensor slots;    // [past + num_tokens] int64: KV slot of each position
  int64_t state = -1;  // where the sequence's state is; of a graph that has one
};

/// Keys and values of one layer: [num_slots, kv_heads * head_dim].
struct ReferenceKv {
  at::Tensor keys;
  at::Tensor values;
  bool are_integers = false;  // rounded to integers, kept as floats
};

/// States of sequences in one layer: each slot's rule and the last inputs of its convolution.
struct ReferenceStates {
  at::Tensor rule;    // [slots, value_heads, key_dim, value_dim]; of a short convolution none
  at::Tensor inputs;  // [slots, taps - 1, channels]
};

/// The tokens of a step that one adapter works on.
struct ReferenceAdapterRows {
  int32_t adapter = 0;
  at::Tensor rows;  // [count] int64
};

/// By-products kept for the recorder; joined once at the end of the pass.
struct ReferenceAudit {
  std::vector<at::Tensor> mean_squares;    // each [tokens, 1]
  std::vector<at::Tensor> expert_ids;      // each [tokens, top_k], int64
  std::vector<at::Tensor> expert_weights;  // each [tokens, top_k]
  std::vector<at::Tensor> router_scores;   // each [tokens, 2 * top_k]: scores, then keys
  std::vector<at::Tensor> router_probs;    // each [tokens, num_experts]
  std::vector<at::Tensor> hidden_states;   // each [tokens, hidden]
};

/// Norms that the kept experts pass on their way to the stream, for each of them the input and the
/// weight; empty where they are added as they are.
struct ReferenceNorms {
  std::vector<at::Tensor> inputs;   // each [tokens, hidden]
  std::vector<at::Tensor> weights;  // each [hidden]
  double eps = 0;
};

/// Vectors kept for attribution, each [tokens, hidden], in the order of the graph.
struct ReferenceAttribution {
  std::vector<at::Tensor> streams;  // the residual stream after each op that adds to it
  std::vector<at::Tensor> experts;  // every expert of every layer, weighted; then the shared one
  std::vector<at::Tensor> scalars;  // [1] each: of layers, with which the stream was multiplied
  // How many of the scalars stand before each stream, and each expert.
  std::vector<int64_t> stream_scalars, expert_scalars;
  ReferenceNorms outer, inner;
  at::Tensor dots;  // [2, streams + experts, rows]: with the chosen token's direction, the other's

  void keep_stream(const at::Tensor& stream) {
    streams.push_back(stream);
    stream_scalars.push_back(std::ssize(scalars));
  }
  void keep_expert(const at::Tensor& expert) {
    experts.push_back(expert);
    expert_scalars.push_back(std::ssize(scalars));
  }
};

/// Called by ops where a by-product appears; the naive recorder reads it back there and then.
class ReferenceHook {
 public:
  virtual ~ReferenceHook() = default;
  virtual void on_value(const at::Tensor& value) = 0;
};

/// State of one reference pass.
class ReferenceStep {
 public:
  const ops::Graph* graph = nullptr;
  TensorWeights* weights = nullptr;
  std::vector<ReferenceKv>* kv = nullptr;
  std::vector<ReferenceStates>* states = nullptr;  // by layer; empty where the graph has none
  at::Tensor token_ids;                            // [tokens] int64
  at::Tensor positions;                            // [tokens] int64
  at::Tensor new_slots;                            // [tokens] int64
  at::Tensor row_tokens;                           // [rows] int64
  at::Tensor row_targets;                          // [rows] int64; -1: the best
  at::Tensor rope_cos;                             // [max_context, head_dim / 2]
  at::Tensor rope_sin;
  at::Tensor sliding_cos;  // of layers that slide, where these have their own
  at::Tensor sliding_sin;
  std::vector<ReferenceSpan> spans;
  TensorAdapters* adapters = nullptr;
  std::vector<ReferenceAdapterRows> adapter_rows;
  bool statistics = false;  // the head computes log-sum-exp, entropy and the ten best
  ReferenceAudit* audit = nullptr;
  bool full_audit = false;
  ReferenceAttribution* attribution = nullptr;
  // By layer, [tokens, top_k] where it has a router; empty where the step forces nothing. -1: the
  // router's own id or weight stands.
  std::vector<at::Tensor> forced_ids, forced_weights;
  ReferenceHook* hook = nullptr;
  ops::TapBook* taps = nullptr;
  ops::Readback* readback = nullptr;
  const int32_t* host_token_ids = nullptr;  // [tokens], as `token_ids`
  const int32_t* host_positions = nullptr;  // [tokens], as `positions`
  // Where there are taps, what ops made on their way, by its name: rows as OwnRows has them.
  std::map<std::string, at::Tensor> own_rows;

  std::vector<at::Tensor> values;                      // by ValueId
  std::vector<at::Tensor> routes_ids, routes_weights;  // by layer: [tokens, top_k]
  // The members below are the head's results.
  at::Tensor logits;      // [rows, vocabulary]
  at::Tensor chosen_ids;  // [rows] int64
  at::Tensor row_floats;  // [rows, 7]: chosen logit, log-sum-exp, entropy, the digest's four pieces
  at::Tensor top_ids;     // [rows, 10] int64
  at::Tensor top_logits;  // [rows, 10]

  at::Tensor& value(ops::ValueId id) { return values[static_cast<size_t>(id)]; }
  const at::Tensor& input(const ops::OpNode& node, size_t index) {
    return value(node.inputs[index]);
  }
  /// x [n, cols] times the matrix transposed, with quantized activations where it is quantized.
  at::Tensor linear(const at::Tensor& x, const std::string& module, int64_t rows,
                    const std::string& bias = {});
  /// Tells the hook, where there is one.
  void observe(const at::Tensor& tensor) {
    if (hook != nullptr) hook->on_value(tensor);
  }
};

}  // namespace vitrine::backend_torch
