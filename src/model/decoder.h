// SPDX-License-Identifier: Apache-2.0
// The decoder that most architectures share, with norms before its blocks or behind them; a file
// per architecture says in what it differs.
#pragma once

#include <functional>
#include <string>

#include "checkpoint/model_config.h"
#include "kernels/cpu/cpu_kernels.h"
#include "ops/decoder_ops.h"
#include "ops/graph.h"

namespace vitrine::model {

/// What an architecture chooses. Names are relative to `model.layers.N.`.
struct DecoderTraits {
  bool qkv_bias = false;
  bool output_bias = false;          // the attention's output projection has one
  bool query_key_norm = false;       // q_norm and k_norm, over each head
  bool norm_whole_row = false;       // both go over the whole row
  bool normalize_top_k = false;      // the chosen probabilities are divided by their sum
  bool softmax_after_top_k = false;  // softmax goes over the chosen logits alone
  // Names of norms, of layers and behind the last one, and of modules.
  std::string input_norm = "input_layernorm", block_norm = "post_attention_layernorm";
  std::string final_norm = "model.norm";
  std::string query_norm = "self_attn.q_norm", key_norm = "self_attn.k_norm";
  std::string output = "self_attn.o_proj";
  std::string dense_block = "mlp";
  std::string block = "mlp";  // prefix of the feed-forward block in a sparse layer
  std::string router = "mlp.gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  // in any block
  double attention_scale = 0;  // where the config has none; 0: 1 / sqrt(head_dim)
  std::string shared_block;    // prefix of a shared expert; empty: there is none
  std::string shared_gate;     // its gate; empty: it counts whole
  bool rotates_neighbours = false;
  ops::RouterParameters::Score score = ops::RouterParameters::Score::kSoftmax;
  std::string correction;                 // what is added to scores for the choice; empty: nothing
  double sum_epsilon = 0, least_sum = 0;  // added to, and least of, the sum that divides weights
  bool group_score_is_best = false;       // a group counts its best expert; else its two best
  bool sinks = false;                     // attention has self_attn.sinks
  bool router_bias = false;
  bool expert_biases = false;
  kernels::Gating gating;                  // how experts are gated
  bool norms_add_one = false;              // the weight of a norm is 1 + what the checkpoint holds
  bool output_gate = false;                // each head's query brings a gate of the head's output
  bool groups_linear_projections = false;  // one matrix makes them all, by key head
  bool groups_linear_strengths = false;    // one matrix makes strengths and decays, by key head
  bool tiles_linear_heads = false;         // value head h reads key head h % key heads
  // A block reads the stream as it is, and what it gives is normed before it is added.
  bool norms_outputs = false;
};

/// Sets DeepSeek-V3's routing (2024), as dots1 and glm4_moe have it: scores by sigmoid, corrected
/// for the choice, and shared experts beside those that are chosen.
void set_deepseek_routing(const ModelConfig& config, DecoderTraits& traits);
/// Sets what the families of Qwen3-Next have in common.
void set_qwen3_next_layers(const ModelConfig& config, DecoderTraits& traits);
/// Sets Mixtral's names of a sparse layer's tensors, which minimax_m2 has, too.
void set_mixtral_names(DecoderTraits& traits);

/// Returns the sizes of the layers that keep a state by Gated DeltaNet.
ops::GatedDeltaShape linear_shape(const ModelConfig& config);
/// Returns the float32 numbers of a layer's state.
int64_t state_floats(const ModelConfig& config);

ops::Graph build_decoder(const ModelConfig& config, const DecoderTraits& traits);

}  // namespace vitrine::model
