// SPDX-License-Identifier: Apache-2.0
// router: the probabilities of a layer's experts and the top-k of them. Its ids, weights and (level
// full) whole distribution are left in the audit record as they are made.
#include <algorithm>
#include <array>
#include <optional>

#include "ops/decoder_ops.h"
#include "ops/low_rank.h"
#include "ops/op.h"
#include "ops/scored_router.h"

namespace vitrine::ops {
namespace {

// The part of a token's forced routes, which are ordered by layer, that is one layer's.
std::span<const ForcedRoute> routes_of_layer(std::span<const ForcedRoute> routes, int32_t layer) {
  const auto [begin, end] = std::ranges::equal_range(routes, layer, {}, &ForcedRoute::layer);
  return {begin, end};
}

class PlannedRouter final : public PlannedOp {
 public:
  PlannedRouter(PlanContext& context, const OpNode& node, const RouterParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.scratch.value(node.inputs[0])),
        weight_(context.weights.matrix(own.matrix, own.shape.experts, in_.width)),
        layer_(node.layer),
        logits_(&context.scratch.shared_rows("router_logits", context.shape.max_tokens,
                                             own.shape.experts)),
        low_rank_(context, in_, std::array{LowRankProducts::Product{logits_, own.matrix}}, 1.0),
        normalize_(own.normalizes),
        softmax_after_(own.softmax_after_top_k) {
    context.scratch.routes[static_cast<size_t>(node.layer)] = std::make_unique<RouteBuffer>();
    RouteBuffer& routes = *context.scratch.routes[static_cast<size_t>(node.layer)];
    routes_ = &routes;
    routes.top_k = static_cast<int32_t>(own.shape.top_k);
    routes.num_experts = static_cast<int32_t>(own.shape.experts);
    routes.ids =
        context.scratch.shared_array<int32_t>("route_ids", context.shape.max_tokens * routes.top_k);
    routes.weights = context.scratch.shared_array<float>("route_weights",
                                                         context.shape.max_tokens * routes.top_k);
    routes.probs = context.scratch.shared_array<float>(
        "router_probs", context.shape.max_tokens * routes.num_experts);
    context.scratch.need(in_, weight_);
    if (own.is_scored()) {
      const auto vector_of = [&](const std::string& name) {
        return name.empty() ? nullptr : context.weights.vector(name, own.shape.experts);
      };
      scored_.emplace(own, vector_of(own.correction), vector_of(own.expert_scale));
    }
    const std::string& bias = own.bias;
    if (!bias.empty()) bias_ = context.weights.vector(bias, weight_.rows);
    // A small router is not worth sharing out.
    row_pieces_ = weight_.rows * weight_.cols < (1 << 16)
                      ? 1
                      : divide_up(weight_.rows, kernels::kTileRows * 2);
    for (const auto& layer : context.audit.layers) {
      if (layer.layer == node.layer) slots_ = layer;
    }
    const ExpertCache* cache = context.weights.experts();
    if (cache != nullptr && cache->reads_ahead()) plan_prediction(context);
    token_bytes_ = static_cast<size_t>(context.audit.token_words) * 4;
    add_phase(low_rank_.first_half(
        make_phase(this, "logits", &PlannedRouter::product_pieces, &PlannedRouter::multiply)));
    add_phase(low_rank_.second_half());
    add_phase("top_k", &PlannedRouter::num_blocks, &PlannedRouter::choose);
  }

  std::span<const std::byte> leader_weights() const override {
    if (row_pieces_ > 1 || weight_.data == nullptr) return {};
    return {static_cast<const std::byte*>(weight_.data), kernels::packed_bytes(weight_).data};
  }

  int64_t num_blocks(const StepState& step) const {
    return divide_up(step.tokens, kTokensPerPiece);
  }
  int64_t product_pieces(const StepState& step) const { return num_blocks(step) * row_pieces_; }
  void multiply(const StepState& step, int64_t piece) const {
    project(step, piece / row_pieces_, piece % row_pieces_);
  }
  void choose(const StepState& step, int64_t piece) const {
    const RouteBuffer& routes = *routes_;
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) {
      int32_t* ids = routes.ids + token * routes.top_k;
      float* weights = routes.weights + token * routes.top_k;
      float* probs = routes.probs + token * routes.num_experts;
      choose_experts(logits_->row(token), probs, ids, weights);
      if (step.forced_routes != nullptr) force(step, token, probs, ids, weights);
      if (step.audit && slots_.expert_ids >= 0) record(step, token, ids, weights, probs);
    }
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + "." + weight_kernel_name(weight_) +
           (scored_ ? "+scores+top_k" : "+softmax+top_k") + (low_rank_.empty() ? "" : "+low_rank");
  }
  uint64_t weight_bytes() const override {
    return ops::weight_bytes(weight_) + low_rank_.weight_bytes();
  }

 private:
  static constexpr int64_t kTokensPerPiece = 16;

  void project(const StepState& step, int64_t token_piece, int64_t row_piece) const {
    const int64_t first = token_piece * kTokensPerPiece;
    kernels::Activations input = activations(in_, weight_);
    input.values += first * input.value_stride;
    if (input.quantized != nullptr) {
      input.quantized += first * input.quantized_stride;
      input.scales += first * input.group_stride;
      input.sums += first * input.group_stride;
    }
    kernels::RowMap rows;
    rows.count = static_cast<int32_t>(std::min<int64_t>(kTokensPerPiece, step.tokens - first));
    const int64_t span = row_pieces_ == 1 ? weight_.rows : kernels::kTileRows * 2;
    products_.linear(weight_, row_piece * span, std::min(weight_.rows, (row_piece + 1) * span),
                     input, rows, bias_, nullptr, logits_->row(first), logits_->width);
  }

  void choose_experts(const float* logits, float* probs, int32_t* ids, float* weights) const {
    if (scored_) return scored_->choose(kernel_, logits, probs, ids, weights);
    kernel_.router_top_k(logits, routes_->num_experts, routes_->top_k, normalize_, softmax_after_,
                         probs, ids, weights);
  }

  /// Another layer's stream may not have the quantized rows that this matrix takes.
  void plan_prediction(PlanContext& context) {
    if (is_quantized(weight_)) return;
    const int64_t experts = routes_->num_experts, top_k = routes_->top_k;
    guess_logits_ = context.scratch.shared_array<float>("guess_logits", experts);
    guess_probs_ = context.scratch.shared_array<float>("guess_probs", experts);
    guess_ids_ = context.scratch.shared_array<int32_t>("guess_ids", top_k);
    guess_weights_ = context.scratch.shared_array<float>("guess_weights", top_k);
    routes_->predict = [this](const RowBuffer& input, int32_t row) {
      products_.linear(weight_, 0, weight_.rows, activations(input, weight_), {&row, &kFirst, 1},
                       bias_, nullptr, guess_logits_, weight_.rows);
      choose_experts(guess_logits_, guess_probs_, guess_ids_, guess_weights_);
      return guess_ids_;
    };
  }

  void force(const StepState& step, int64_t token, const float* probs, int32_t* ids,
             float* weights) const {
    const std::span<const ForcedRoute> routes = routes_of_layer(step.forced_routes[token], layer_);
    if (routes.empty()) return;
    const int32_t top_k = routes_->top_k;
    for (int32_t slot = 0; slot < top_k; ++slot) {
      ids[slot] = routes[static_cast<size_t>(slot)].expert;
    }
    if (scored_) {
      scored_->weigh(probs, ids, weights);
    } else {
      kernel_.route_weights(logits_->row(token), probs, ids, top_k, normalize_, softmax_after_,
                            weights);
    }
    for (int32_t slot = 0; slot < top_k; ++slot) {
      const float weight = routes[static_cast<size_t>(slot)].weight;
      if (weight != ForcedRoute::kRouterWeight) weights[slot] = weight;
    }
  }

  void record(const StepState& step, int64_t token, const int32_t* ids, const float* weights,
              const float* probs) const {
    std::byte* base = step.token_records + static_cast<size_t>(token) * token_bytes_;
    auto* words = reinterpret_cast<int32_t*>(base);
    auto* floats = reinterpret_cast<float*>(base);
    std::copy_n(ids, slots_.top_k, words + slots_.expert_ids);
    std::copy_n(weights, slots_.top_k, floats + slots_.expert_weights);
    if (slots_.router_scores >= 0) scored_->record(probs, ids, floats + slots_.router_scores);
    if (slots_.router_probs >= 0) {
      std::copy_n(probs, slots_.num_experts, floats + slots_.router_probs);
    }
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  const kernels::Weight& weight_;
  const float* bias_ = nullptr;
  int32_t layer_;
  RowBuffer* logits_;
  LowRankProducts low_rank_;
  bool normalize_, softmax_after_;
  std::optional<ScoredRouter> scored_;
  RouteBuffer* routes_ = nullptr;
  static constexpr int32_t kFirst = 0;
  float* guess_logits_ = nullptr;  // of one token, as all of these
  float* guess_probs_ = nullptr;
  int32_t* guess_ids_ = nullptr;
  float* guess_weights_ = nullptr;
  int64_t row_pieces_ = 1;
  AuditLayout::Layer slots_;
  size_t token_bytes_ = 0;
};

std::unique_ptr<PlannedOp> plan_router(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedRouter>(context, node, node.as<RouterParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"router", plan_router}));

}  // namespace
}  // namespace vitrine::ops
