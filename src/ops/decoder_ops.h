// SPDX-License-Identifier: Apache-2.0
// The parameters of the ops that decoders are made of. Matrices are named by module
// ("model.layers.0.mlp.gate"), vectors by tensor.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/delta_kernels.h"
#include "ops/graph.h"

namespace vitrine::ops {

/// token ids -> residual [hidden]: rows of a table.
struct EmbedParameters final : OpParametersOf<EmbedParameters> {
  static constexpr std::string_view kKind = "embed";
  std::string table;  // [vocabulary, hidden]
  double multiplier = 1;

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) { rename(table); }
  std::vector<AddedPart> added_parts(const Graph&, const OpNode& node) const override;
};

/// residual -> normed; or residual alone, whose norm is recorded where something records.
struct NormParameters final : OpParametersOf<NormParameters> {
  static constexpr std::string_view kKind = "norm";
  std::string weight;       // empty: none
  double weight_scale = 1;  // of the weight, rounded once at load
  double eps = 0;
  /// Reads the stream as it enters the layer, whose norm is recorded; outside of the layers: as it
  /// leaves the last one.
  bool enters_layer = false;

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) { rename(weight); }
  bool reads_stream_between_layers() const override { return enters_layer; }
  std::optional<NormWeight> norm_weight() const override { return NormWeight{weight, eps}; }
  /// Whether what it makes of the stream stands in a token's record.
  bool is_recorded(const OpNode& node) const { return enters_layer && node.layer >= 0; }
  std::vector<RecordedWords> recorded(const AuditLayout& layout, const OpNode& node) const override;
};

/// normed -> query, key, value.
struct QkvParameters final : OpParametersOf<QkvParameters> {
  static constexpr std::string_view kKind = "qkv";
  std::array<std::string, 3> matrices;  // of query, key and value
  std::array<std::string, 3> biases;    // empty: none

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string& name : matrices) rename(name);
    for (std::string& name : biases) rename(name);
  }
  void append_matrices(const Graph& graph, const OpNode& node,
                       std::vector<OpMatrix>& matrices) const override;
};

/// query, key, value -> attended; or query -> attended, over the keys and values of another layer
/// (Graph::kv_shape).
struct AttentionParameters final : OpParametersOf<AttentionParameters> {
  static constexpr std::string_view kKind = "attention";
  double scale = 0;
  std::string query_norm, key_norm;  // empty: none
  double eps = 0;                    // of these
  bool norms_whole_row = false;      // not each head
  bool norms_values = false;         // each head's value, without a weight
  double clip = 0;                   // of query, key and value; 0: none
  int64_t window = 0;                // positions that a token sees, its own the last; 0: all
  std::string sinks;                 // [heads] a score each without a value; empty: none
  int64_t rotary_dim = 0;            // first elements of a head that are rotated; 0: none
  bool rotates_neighbours = false;   // elements 2i and 2i + 1, else i and i + rotary_dim / 2
  bool is_sliding_kind = false;      // the rotary tables are those of layers that slide (gemma4)
  // Behind each head of the query stands its gate, as wide: the head's output is multiplied with
  // the gate's sigmoid.
  bool has_output_gate = false;

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&query_norm, &key_norm, &sinks}) rename(*name);
  }
  std::optional<KvReads> kv_reads() const override { return KvReads{window, !sinks.empty()}; }
};

/// The most taps of a convolution over positions, in any config.
inline constexpr int64_t kMaxTaps = 16;

/// Sizes of a layer with a state (Gated DeltaNet).
struct GatedDeltaShape {
  int64_t key_heads = 0, value_heads = 0;  // the first divides the second
  int64_t key_dim = 0, value_dim = 0;      // of a head
  int64_t taps = 0;                        // of the convolution

  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t values_of_key() const { return value_heads / key_heads; }
  /// Tiles of kDeltaColumns columns of one head.
  int64_t tiles() const {
    return (value_dim + kernels::kDeltaColumns - 1) / kernels::kDeltaColumns;
  }
  int64_t tile_floats() const { return key_dim * kernels::kDeltaColumns; }
  /// [value_heads, tiles, key_dim, kDeltaColumns], then the last [taps - 1, channels] inputs of the
  /// convolution.
  int64_t state_floats() const {
    return value_heads * tiles() * tile_floats() + (taps - 1) * channels();
  }
};

/// qkv, z, b, a (or, grouped by key head, qkvz and ba; or qkv, z and grouped ba) -> attended:
/// linear attention with a state by the gated delta rule (Yang et al. 2024), its convolution before
/// it, its gated norm behind it.
struct GatedDeltaParameters final : OpParametersOf<GatedDeltaParameters> {
  static constexpr std::string_view kKind = "gated_delta";
  GatedDeltaShape shape;
  // Each key head's query, key, values and gates stand together (qwen3_next) …
  bool is_grouped = false;
  // … and its b and a.
  bool groups_strengths = false;
  // Value head h reads key head h % key_heads; else h / values_of_key.
  bool is_tiled = false;
  std::string convolution;  // [channels, taps]: queries, keys, values
  std::string rate, bias;   // [value_heads] -exp(A_log), dt_bias
  std::string norm;         // [value_dim]
  double eps = 0;           // of that

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&convolution, &rate, &bias, &norm}) rename(*name);
  }
  StateShapes state(const Graph&, const OpNode&) const override {
    return {{shape.value_heads, shape.key_dim, shape.value_dim},
            {shape.taps - 1, shape.channels()}};
  }
  std::string_view speciality() const override {
    return "keeps a state in place of keys and values";
  }
};

/// [tokens, 3 * width] b, c, x -> [tokens, width]: c times the causal convolution of b times x,
/// each channel by itself (lfm2_moe). The state is its last taps - 1 inputs, [taps - 1, width].
struct ShortConvolutionParameters final : OpParametersOf<ShortConvolutionParameters> {
  static constexpr std::string_view kKind = "short_convolution";
  int64_t taps = 0;
  std::string weight;  // [width, taps]
  std::string bias;    // [width]; empty: none

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&weight, &bias}) rename(*name);
  }
  StateShapes state(const Graph& graph, const OpNode& node) const override {
    return {{}, {taps - 1, graph.width(node.outputs[0])}};
  }
  std::string_view speciality() const override {
    return "keeps a state in place of keys and values";
  }
};

/// query, latent -> attended: latent attention (MLA; DeepSeek-V2, 2024), absorbed. A position has
/// one key for all heads, its normed latent and behind it a rotated part; the latent is the value,
/// too.
struct LatentAttentionParameters final : OpParametersOf<LatentAttentionParameters> {
  static constexpr std::string_view kKind = "latent_attention";
  LatentModule keys_and_values;  // of a latent
  std::string norm;              // [latent]
  double eps = 0;                // of that
  double scale = 0;
  int64_t rotary_dim = 0;  // last elements of a query head and of a key
  bool rotates_neighbours = false;

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&keys_and_values.module, &norm}) rename(*name);
  }
  std::optional<KvReads> kv_reads() const override { return KvReads{}; }
  std::string_view speciality() const override { return "has latent attention"; }
  int64_t query_dim() const { return keys_and_values.key_rows + rotary_dim; }  // of a head
  int64_t key_dim() const { return keys_and_values.latent + rotary_dim; }
};

/// in, residual -> residual; or in -> out.
struct ProjectParameters final : OpParametersOf<ProjectParameters> {
  static constexpr std::string_view kKind = "project";
  std::string matrix;
  std::string bias;       // empty: none
  double multiplier = 1;  // of what is added to the residual stream
  bool adds_to_residual = true;
  bool takes_adapters = true;  // else rows or columns stand in another order than adapters have
  bool steers_state = false;   // it makes strengths and decays of a state

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&matrix, &bias}) rename(*name);
  }
  void append_matrices(const Graph& graph, const OpNode& node,
                       std::vector<OpMatrix>& matrices) const override;
  std::vector<AddedPart> added_parts(const Graph&, const OpNode& node) const override;
};

/// normed, residual -> residual; or normed -> out.
struct DenseParameters final : OpParametersOf<DenseParameters> {
  static constexpr std::string_view kKind = "dense";
  std::string gate, up, down;
  int64_t intermediate = 0;
  kernels::Gating gating;
  double multiplier = 1;
  bool adds_to_residual = false;

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&gate, &up, &down}) rename(*name);
  }
  void append_matrices(const Graph& graph, const OpNode& node,
                       std::vector<OpMatrix>& matrices) const override;
  std::vector<AddedPart> added_parts(const Graph&, const OpNode& node) const override;
  std::vector<OwnRows> own_rows(const Graph&, const OpNode&) const override {
    return {{"dense_hidden", intermediate}};
  }
};

/// normed -> the layer's routes.
struct RouterParameters final : OpParametersOf<RouterParameters> {
  static constexpr std::string_view kKind = "router";
  std::string matrix;  // [experts, hidden]
  std::string bias;    // empty: none
  RouterShape shape;
  bool normalizes = false;           // the weights of the chosen ones
  bool softmax_after_top_k = false;  // over the chosen ones alone
  // Scores, and a choice among them that the weights do not know of (scored_router.h).
  enum class Score : uint8_t { kSoftmax, kSigmoid };
  Score score = Score::kSoftmax;
  std::string correction;                 // [experts] added to scores for the choice; empty: none
  int64_t groups = 1, chosen_groups = 1;  // at most 64
  bool group_score_adds_two = true;       // the two best of a group; else its best
  double sum_epsilon = 0;                 // added to the sum that normalizes
  double least_sum = 0;                   // which is at least this
  double scale = 1;                       // of the weights
  std::string expert_scale;               // [experts] of each expert's weight; empty: none

  bool is_scored() const {
    return score != Score::kSoftmax || !correction.empty() || chosen_groups < groups ||
           scale != 1 || !expert_scale.empty();
  }

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&matrix, &bias, &correction, &expert_scale}) rename(*name);
  }
  void append_matrices(const Graph& graph, const OpNode& node,
                       std::vector<OpMatrix>& matrices) const override;
  const RouterShape* router() const override { return &shape; }
  RouterKind router_kind() const override {
    if (!is_scored()) return RouterKind::kPlain;
    return score == Score::kSigmoid ? RouterKind::kSigmoidScores : RouterKind::kSoftmaxScores;
  }
  std::vector<RecordedWords> recorded(const AuditLayout& layout, const OpNode& node) const override;
};

/// normed -> slots [top_k * hidden], by the layer's routes.
struct ExpertsParameters final : OpParametersOf<ExpertsParameters> {
  static constexpr std::string_view kKind = "experts";
  std::string prefix;          // "model.layers.0.mlp.experts."
  std::string gate, up, down;  // behind prefix, number and a point
  int64_t experts = 0;
  int64_t intermediate = 0;

  int64_t top_k = 0;  // slots of a token
  kernels::Gating gating;
  bool has_biases = false;  // of all three: the tensors "….bias"

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) { rename(prefix); }
  std::string module(int64_t expert, const std::string& role) const {
    return prefix + std::to_string(expert) + "." + role;
  }
  void append_matrices(const Graph& graph, const OpNode& node,
                       std::vector<OpMatrix>& matrices) const override;
  RoutedOp routed(const Graph&, const OpNode&) const override { return {experts, top_k}; }
  std::vector<OwnRows> own_rows(const Graph&, const OpNode&) const override {
    return {{"expert_hidden", intermediate, top_k}};
  }
};

/// slots, normed, shared expert -> residual; or slots, normed -> out.
struct CombineParameters final : OpParametersOf<CombineParameters> {
  static constexpr std::string_view kKind = "combine";
  std::string shared_gate;  // [1, hidden]; empty: no shared expert
  double multiplier = 1;
  bool adds_to_residual = true;

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) { rename(shared_gate); }
  std::optional<ResidualPart> made_part(const Graph& graph, const OpNode& node) const override;
  std::vector<AddedPart> added_parts(const Graph& graph, const OpNode& node) const override;
  std::vector<RecordedWords> recorded(const AuditLayout& layout, const OpNode& node) const override;
};

/// rows -> logits.
struct HeadParameters final : OpParametersOf<HeadParameters> {
  static constexpr std::string_view kKind = "head";
  std::string matrix;  // [vocabulary, hidden]
  double multiplier = 1;
  double soft_cap = 0;  // before it: logits become cap * tanh(logit / cap); 0: they do not

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) { rename(matrix); }
  std::optional<LogitMatrix> logits() const override {
    return LogitMatrix{matrix, multiplier, soft_cap};
  }
};

/// branch, residual -> residual: what a block gives is normed before it is added (gemma4). Of two
/// branches each is normed by itself, then their sum.
struct PostNormParameters final : OpParametersOf<PostNormParameters> {
  static constexpr std::string_view kKind = "post_norm";
  /// The term of a branch that is no sum over experts, for whoever takes a logit apart.
  AuditLayout::Term::Kind term = AuditLayout::Term::Kind::kAttention;
  std::string weight;
  std::array<std::string, 2> inner;  // of two branches
  double eps = 0;
  std::string scalar;  // [1] the stream is multiplied with it behind the sum; empty: it is not

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string& name : inner) rename(name);
    for (std::string* name : {&weight, &scalar}) rename(*name);
  }
  /// Returns the routed experts among its branches, then what is left.
  std::vector<AddedPart> added_parts(const Graph& graph, const OpNode& node) const override;
  std::string_view speciality() const override { return "norms what a block gives"; }
  bool has_two() const { return !inner[0].empty(); }
};

/// projected -> a token's vector for each layer [layers * width] (gemma4's E form): the projection
/// of its embedding, normed, and a row of a table.
struct LayerInputsParameters final : OpParametersOf<LayerInputsParameters> {
  static constexpr std::string_view kKind = "layer_inputs";
  std::string table;  // [table_rows, layers * width]
  int64_t table_rows = 0;
  int64_t width = 0;       // of a layer's vector
  double table_scale = 1;  // of the table's rows
  double scale = 1;        // of the projection
  double sum_scale = 1;    // of the sum
  std::string norm;        // [width]
  double eps = 0;

  void append_weights(WeightNames& names) const override;
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&table, &norm}) rename(*name);
  }
};

/// gate [width], layer inputs -> out [width]: gelu(gate) times the layer's vector.
struct LayerGateParameters final : OpParametersOf<LayerGateParameters> {
  static constexpr std::string_view kKind = "layer_gate";
  int64_t first = 0;  // element of the layer inputs
};

}  // namespace vitrine::ops
