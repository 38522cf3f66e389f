// SPDX-License-Identifier: Apache-2.0
// The pre-norm decoder that all supported architectures share; a file per architecture says in what
// it differs.
#pragma once

#include <functional>
#include <string>

#include "kernels/cpu/cpu_kernels.h"
#include "ops/decoder_ops.h"
#include "ops/graph.h"
#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// What an architecture chooses. Names are relative to `model.layers.N.`.
struct DecoderTraits {
  bool qkv_bias = false;
  bool output_bias = false;          // of the attention's output projection
  bool query_key_norm = false;       // q_norm and k_norm per head (qwen3) …
  bool norm_whole_row = false;       // … or over the whole row (olmoe)
  bool normalize_top_k = false;      // the chosen probabilities are divided by their sum
  bool softmax_after_top_k = false;  // granitemoe: softmax over the chosen logits
  std::string block = "mlp";         // prefix of the feed-forward block in a sparse layer
  std::string router = "mlp.gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // of an expert
  double attention_scale = 0;  // where the config has none; 0: 1 / sqrt(head_dim)
  std::string shared_block;    // of a shared expert; empty: there is none
  std::string shared_gate;     // its gate; empty: it counts whole
  bool rotates_neighbours = false;
  ops::RouterParameters::Score score = ops::RouterParameters::Score::kSoftmax;
  std::string correction;                 // what is added to scores for the choice; empty: nothing
  double sum_epsilon = 0, least_sum = 0;  // of the sum by which weights are divided
  bool group_score_is_best = false;       // deepseek_v2; else the sum of the two best
  bool sinks = false;                     // gpt_oss: self_attn.sinks
  bool router_bias = false;
  bool expert_biases = false;
  kernels::Gating gating;  // of experts
};

/// DeepSeek-V3's routing (2024), as dots1 and glm4_moe have it: scores by sigmoid, corrected for
/// the choice, and shared experts beside those that are chosen.
void set_deepseek_routing(const ModelConfig& config, DecoderTraits& traits);
/// Mixtral's names of a sparse layer's tensors, which minimax_m2 has, too.
void set_mixtral_names(DecoderTraits& traits);

ops::Graph build_decoder(const ModelConfig& config, const DecoderTraits& traits);

}  // namespace vitrine::model
