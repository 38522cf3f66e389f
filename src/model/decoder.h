// SPDX-License-Identifier: Apache-2.0
// The decoder that most architectures share, with norms before its blocks or behind them; a file
// per architecture says in what it differs.
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
  // What layers have, and the last norm.
  std::string input_norm = "input_layernorm", block_norm = "post_attention_layernorm";
  std::string final_norm = "model.norm";
  std::string query_norm = "self_attn.q_norm", key_norm = "self_attn.k_norm";
  std::string output = "self_attn.o_proj";
  std::string dense_block = "mlp";
  std::string block = "mlp";  // prefix of the feed-forward block in a sparse layer
  std::string router = "mlp.gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // of any
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
  kernels::Gating gating;      // of experts
  bool norms_add_one = false;  // the weight of a norm is 1 + what the checkpoint holds …
  bool output_gate = false;    // each head's query brings a gate of the head's output
  bool groups_linear_projections = false;  // qwen3_next: by key head, in one matrix …
  bool groups_linear_strengths = false;    // … and what makes strengths and decays in another
  bool tiles_linear_heads = false;         // value head h reads key head h % key heads
  // flex_olmo: a block reads the stream as it is, and what it gives is normed before it is added.
  bool norms_outputs = false;
};

/// DeepSeek-V3's routing (2024), as dots1 and glm4_moe have it: scores by sigmoid, corrected for
/// the choice, and shared experts beside those that are chosen.
void set_deepseek_routing(const ModelConfig& config, DecoderTraits& traits);
/// What the families of Qwen3-Next have in common.
void set_qwen3_next_layers(const ModelConfig& config, DecoderTraits& traits);
/// Mixtral's names of a sparse layer's tensors, which minimax_m2 has, too.
void set_mixtral_names(DecoderTraits& traits);

/// Sizes of the layers that keep a state by Gated DeltaNet.
ops::GatedDeltaShape linear_shape(const ModelConfig& config);
/// Numbers of a layer's state.
int64_t state_floats(const ModelConfig& config);

ops::Graph build_decoder(const ModelConfig& config, const DecoderTraits& traits);

}  // namespace vitrine::model
