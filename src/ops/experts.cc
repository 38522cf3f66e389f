// SPDX-License-Identifier: Apache-2.0
// experts: the routed experts of a layer. Tokens are grouped by expert; each expert's output for
// each of its tokens lands in that token's slot, [tokens, top_k, hidden], where `combine` (and
// later attribution) finds it. Where adapters change an expert's gate or up, these two products
// stand by themselves before the activation; the bits are those of the fused one.
#include <optional>
#include <vector>

#include "ops/attribution.h"
#include "ops/decoder_ops.h"
#include "ops/expert_adapters.h"
#include "ops/formed_input.h"
#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedExperts final : public PlannedOp {
 public:
  PlannedExperts(PlanContext& context, const OpNode& node, const ExpertsParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.scratch.value(node.inputs[0])),
        slots_(context.scratch.value(node.outputs[0])),
        layer_(node.layer),
        all_routes_(context.scratch.routes),
        routes_(*context.scratch.routes[static_cast<size_t>(node.layer)]),
        hidden_size_(in_.width),
        hidden_(context.scratch.shared_rows(
            "expert_hidden", context.shape.max_tokens * routes_.top_k, own.intermediate)),
        token_in_(kernel_, in_, "expert_token"),
        formed_in_(kernel_, "expert_in", hidden_.capacity, in_.width, routes_.num_experts),
        formed_hidden_(kernel_, "expert_hidden", hidden_.capacity, hidden_.width,
                       routes_.num_experts) {
    const int64_t intermediate = own.intermediate;
    const int64_t num_slots = context.shape.max_tokens * routes_.top_k;
    shared_slots_ = slots_.data;
    kept_slots_ = kept_experts(context, node.layer);
    slot_rows_.width = hidden_size_;
    slot_rows_.capacity = num_slots;
    experts_.resize(static_cast<size_t>(routes_.num_experts));
    cache_ = context.weights.experts();
    std::vector<ExpertModules> all_modules;
    for (int64_t expert = 0; expert < routes_.num_experts; ++expert) {
      FeedForwardWeights& weights = experts_[static_cast<size_t>(expert)];
      const ExpertModules modules{own.module(expert, own.gate), own.module(expert, own.up),
                                  own.module(expert, own.down), hidden_size_, intermediate};
      all_modules.push_back(modules);
      FormedMatrix gate, up, down;
      if (cache_ != nullptr) {
        routes_.cached.push_back(cache_->add(modules));
        const ExpertMatrices& matrices = cache_->matrices(routes_.cached.back());
        gate = {&matrices.gate, matrices.form};
        up = {&matrices.up, matrices.form};
        down = {&matrices.down, matrices.down_form};
      } else {
        down = context.weights.formed_matrix(modules.down, hidden_size_, intermediate);
        const int32_t* const folded =
            own.has_biases ? nullptr : foldable_order(context, down, modules.gate, modules.up);
        if (folded != nullptr) down.form.order = nullptr;
        gate = context.weights.formed_matrix(modules.gate, intermediate, hidden_size_, folded);
        up = context.weights.formed_matrix(modules.up, intermediate, hidden_size_, folded);
      }
      weights = {gate.weight, up.weight, down.weight};
      // A row that hangs on the token alone is made once for all of its experts.
      const bool is_tokens =
          gate.form.order == nullptr && gate.form.row_scale == 0.0f &&
          (token_weight_ == nullptr || token_weight_->group_size == gate.weight->group_size);
      if (is_tokens && token_weight_ == nullptr) {
        token_weight_ = token_in_.need(context.scratch, gate);
      }
      is_by_token_.push_back(is_tokens);
      if (!is_tokens) formed_in_.need(context.scratch, expert, gate);
      formed_hidden_.need(context.scratch, expert, down);
      if (own.has_biases) {
        weights.gate_bias = context.weights.vector(modules.gate + ".bias", intermediate);
        weights.up_bias = context.weights.vector(modules.up + ".bias", intermediate);
        weights.down_bias = context.weights.vector(modules.down + ".bias", hidden_size_);
      }
      require_pair(*weights.gate, modules.gate, *weights.up, modules.up);
      if (!gate.form.is_own()) context.scratch.need(in_, *weights.gate);
      if (!down.form.is_own()) context.scratch.need(hidden_, *weights.down);
    }
    parts_.gating = own.gating;
    if (parts_.gating.kind == kernels::Gating::Kind::kSilu && own.has_biases) {
      throw Error(ErrorKind::kUnsupported,
                  "experts with biases and silu have no fused kernels; use --kernels reference");
    }
    if (parts_.gating.kind != kernels::Gating::Kind::kSilu) {
      parts_.gate = &context.scratch.shared_rows("expert_gate", num_slots, intermediate);
      parts_.up = &context.scratch.shared_rows("expert_up", num_slots, intermediate);
    }
    adapters_.emplace(context, all_modules, routes_.top_k);
    threads_ = context.shape.threads;
    least_hidden_rows_ = hidden_rows_per_piece(hidden_, threads_);
    least_out_rows_ = rows_per_piece(hidden_size_, threads_, kernels::kTileRows);
    token_of_ = context.scratch.shared_array<int32_t>("token_of", num_slots);
    slot_of_ = context.scratch.shared_array<int32_t>("slot_of", num_slots);
    active_ = context.scratch.shared_array<int32_t>("active", routes_.num_experts);
    selected_ = context.scratch.shared_array<int32_t>("selected", routes_.num_experts);
    begin_ = context.scratch.shared_array<int32_t>("begin", routes_.num_experts + 1);
    guesses_ = context.scratch.shared_array<int32_t>("guesses", kMostGuessed * routes_.top_k);
    using Op = PlannedExperts;
    add_phase(token_in_.phase());
    add_phase("form", &Op::pieces_to_form, &Op::form_inputs);
    Phase hidden = make_phase(this, "hidden", &Op::hidden_pieces, &Op::run_hidden_piece);
    Phase ask = make_phase(this, "ask", &Op::experts_to_ask, &Op::ask);
    (cache_ != nullptr ? ask : hidden).prepare = [this](const StepState& step) { prepare(step); };
    if (cache_ != nullptr) add_phase(std::move(ask));
    add_phase(std::move(hidden));
    Phase inner =
        make_phase(this, "inner_adapters", &Op::inner_adapter_pieces, &Op::run_inner_adapters);
    inner.prepare = [this](const StepState&) {
      if (num_missing_ > 0) cache_->finish();
    };
    add_phase(std::move(inner));
    add_phase("activate", &Op::slots_to_activate, &Op::activate);
    add_phase("form_hidden", &Op::hidden_pieces_to_form, &Op::form_hidden);
    add_phase("down", &Op::down_pieces, &Op::run_down_piece);
    add_phase("outer_adapters", &Op::outer_adapter_pieces, &Op::run_outer_adapters);
  }

  /// The input of each slot in its expert's form, and its hidden row likewise.
  int64_t pieces_to_form(const StepState& step) const {
    return formed_in_.empty() ? 0 : divide_up(num_slots(step), kSlotsPerPiece);
  }
  void form_inputs(const StepState& step, int64_t piece) const {
    const int64_t end = std::min(num_slots(step), (piece + 1) * kSlotsPerPiece);
    for (int64_t slot = piece * kSlotsPerPiece; slot < end; ++slot) {
      formed_in_.quantize(routes_.ids[slot], slot, in_.row(slot / routes_.top_k));
    }
  }
  int64_t hidden_pieces_to_form(const StepState& step) const {
    return is_by_expert_ || formed_hidden_.empty() ? 0 : divide_up(num_slots(step), kSlotsPerPiece);
  }
  void form_hidden(const StepState& step, int64_t piece) const {
    const int64_t end = std::min(num_slots(step), (piece + 1) * kSlotsPerPiece);
    for (int64_t slot = piece * kSlotsPerPiece; slot < end; ++slot) {
      formed_hidden_.quantize(routes_.ids[slot], slot, hidden_.row(slot));
    }
  }

  /// Finds experts that are not in memory, and those that the next layer may need.
  void prepare(const StepState& step) {
    slots_.data =
        step.audit && step.tokens == 1 && kept_slots_ != nullptr ? kept_slots_ : shared_slots_;
    slot_rows_.data = slots_.data;
    group(step);
    hidden_rows_ = piece_rows(hidden_.width, least_hidden_rows_);
    out_rows_ = piece_rows(hidden_size_, least_out_rows_);
    adapters_->group(step, begin_, slot_of_);
    is_by_expert_ = goes_by_expert(step);
    if (cache_ == nullptr) return;
    select();
    prefetch(step);
  }

  /// Experts that the system is to begin to read.
  int64_t experts_to_ask(const StepState&) const { return cache_->num_asked(); }
  void ask(const StepState&, int64_t index) const { cache_->ask(static_cast<int32_t>(index)); }

  /// Hidden layers, per active expert and rows, and the first half of what adapters add to gate and
  /// up; or all of an expert.
  int64_t hidden_pieces(const StepState& step) const {
    return is_by_expert_ ? num_active_ : inner_pieces(step) + adapters_->inner_pieces(0);
  }
  void run_hidden_piece(const StepState& step, int64_t piece) const {
    if (is_by_expert_) return run_whole(piece);
    const int64_t own = inner_pieces(step);
    return piece < own ? run_inner(step, piece) : adapters_->run_inner(in_, 0, piece - own);
  }
  int64_t inner_adapter_pieces(const StepState&) const { return adapters_->inner_pieces(1); }
  void run_inner_adapters(const StepState&, int64_t piece) const {
    adapters_->run_inner(in_, 1, piece);
  }
  /// The activation, of steps in which adapters change what it reads.
  int64_t slots_to_activate(const StepState& step) const {
    return adapters_->splits(step) ? num_slots(step) : 0;
  }
  void activate(const StepState&, int64_t slot) const {
    if (parts_.gate == nullptr) {
      return activate_row(kernel_, adapters_->gate(), adapters_->up(), hidden_, slot);
    }
    ops::activate(kernel_, parts_, hidden_, slot, 0, hidden_.width);
    hidden_.quantize(kernel_, slot);
  }
  /// Down, per active expert and rows, and the first half of what adapters add to it.
  int64_t down_pieces(const StepState&) const {
    return is_by_expert_ ? 0 : outer_pieces() + adapters_->outer_pieces(0);
  }
  void run_down_piece(const StepState&, int64_t piece) const {
    const int64_t own = outer_pieces();
    return piece < own ? run_outer(piece)
                       : adapters_->run_outer(hidden_, slot_rows_, 0, piece - own);
  }
  int64_t outer_adapter_pieces(const StepState&) const { return adapters_->outer_pieces(1); }
  void run_outer_adapters(const StepState&, int64_t piece) const {
    adapters_->run_outer(hidden_, slot_rows_, 1, piece);
  }

  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".grouped_" + weight_kernel_name(*experts_[0].gate) +
           "+" + weight_kernel_name(*experts_[0].down) +
           form_name(token_in_, formed_in_, formed_hidden_) +
           (adapters_->empty() ? "" : "+low_rank");
  }
  uint64_t weight_bytes() const override {
    return experts_[0].bytes() * static_cast<uint64_t>(routes_.top_k) + adapters_->weight_bytes();
  }

 private:
  int64_t num_slots(const StepState& step) const {
    return static_cast<int64_t>(step.tokens) * routes_.top_k;
  }

  bool goes_by_expert(const StepState& step) const {
    const uint64_t bytes = experts_[0].bytes() * static_cast<uint64_t>(num_active_);
    return step.tokens == 1 && adapters_->empty() && num_active_ % threads_ == 0 &&
           barrier_shows(bytes, threads_);
  }

  /// Few experts are divided among the threads; of many each is a piece or two, which spares calls
  /// and lets a thread keep the tokens of one.
  int64_t piece_rows(int64_t rows, int64_t least) const {
    constexpr int64_t kPiecesPerThread = 48;
    const int64_t parts = divide_up(rows, least);
    const int64_t together = num_active_ * parts / (kPiecesPerThread * threads_);
    return std::clamp<int64_t>(together, 1, parts) * least;
  }

  int64_t inner_pieces(const StepState& step) const {
    return num_active_ * divide_up(hidden_.width, hidden_rows_) * (adapters_->splits(step) ? 2 : 1);
  }
  int64_t outer_pieces() const { return num_active_ * divide_up(hidden_size_, out_rows_); }

  kernels::RowMap rows_of(int32_t expert, const int32_t* in_rows) const {
    return {in_rows + begin_[expert], slot_of_ + begin_[expert],
            begin_[expert + 1] - begin_[expert]};
  }

  /// What an expert's gate and up multiply, and its rows.
  kernels::Activations input_of(int32_t expert) const {
    if (formed_in_.has(expert)) return formed_in_.activations(expert);
    return is_by_token_[static_cast<size_t>(expert)]
               ? token_in_.activations(*token_weight_)
               : activations(in_, *experts_[static_cast<size_t>(expert)].gate);
  }
  const int32_t* input_rows(int32_t expert) const {
    return formed_in_.has(expert) ? slot_of_ : token_of_;
  }

  void run_inner(const StepState& step, int64_t piece) const {
    const int64_t each = divide_up(hidden_.width, hidden_rows_);
    const bool is_up = piece >= num_active_ * each;  // of a split step
    if (is_up) piece -= num_active_ * each;
    const int32_t expert = active_[piece / each];
    wait_for(expert);
    const int64_t begin = piece % each * hidden_rows_;
    const int64_t end = std::min(hidden_.width, begin + hidden_rows_);
    const FeedForwardWeights& weights = experts_[static_cast<size_t>(expert)];
    const kernels::RowMap rows = rows_of(expert, input_rows(expert));
    const kernels::Activations input = input_of(expert);
    if (!adapters_->splits(step)) {
      run_hidden(kernel_, products_, weights, input, hidden_, rows, begin, end, parts_);
      return;
    }
    const kernels::Weight& weight = is_up ? *weights.up : *weights.gate;
    products_.linear(weight, begin, end, input, rows, is_up ? weights.up_bias : weights.gate_bias,
                     nullptr, (is_up ? adapters_->up() : adapters_->gate()).data, hidden_.width);
  }

  void run_whole(int64_t index) const {
    const int32_t expert = active_[index];
    wait_for(expert);
    const kernels::RowMap rows = rows_of(expert, input_rows(expert));
    run_hidden(kernel_, products_, experts_[static_cast<size_t>(expert)], input_of(expert), hidden_,
               rows, 0, hidden_.width, parts_);
    for (int32_t i = 0; i < rows.count; ++i) {
      formed_hidden_.quantize(expert, rows.out_rows[i], hidden_.row(rows.out_rows[i]));
    }
    run_down(expert, 0, hidden_size_);
  }

  void run_outer(int64_t piece) const {
    const int64_t each = divide_up(hidden_size_, out_rows_);
    const int64_t begin = piece % each * out_rows_;
    run_down(active_[piece / each], begin, std::min(hidden_size_, begin + out_rows_));
  }

  void run_down(int32_t expert, int64_t begin, int64_t end) const {
    const FeedForwardWeights& weights = experts_[static_cast<size_t>(expert)];
    const kernels::Weight& down = *weights.down;
    products_.linear(down, begin, end,
                     formed_hidden_.has(expert) ? formed_hidden_.activations(expert)
                                                : activations(hidden_, down),
                     rows_of(expert, slot_of_), weights.down_bias, nullptr, slot_rows_.data,
                     slot_rows_.width);
  }

  // A counting sort of the slots by expert; within an expert they stay in token order.
  void group(const StepState& step) {
    const int32_t count = step.tokens * routes_.top_k;
    for (int32_t expert = 0; expert <= routes_.num_experts; ++expert) begin_[expert] = 0;
    for (int32_t slot = 0; slot < count; ++slot) ++begin_[routes_.ids[slot] + 1];
    num_active_ = 0;
    for (int32_t expert = 0; expert < routes_.num_experts; ++expert) {
      if (begin_[expert + 1] > 0) active_[num_active_++] = expert;
      begin_[expert + 1] += begin_[expert];
    }
    for (int32_t slot = 0; slot < count; ++slot) {
      const int32_t place = begin_[routes_.ids[slot]]++;
      slot_of_[place] = slot;
      token_of_[place] = slot / routes_.top_k;
    }
    for (int32_t expert = routes_.num_experts; expert > 0; --expert) {
      begin_[expert] = begin_[expert - 1];
    }
    begin_[0] = 0;
  }

  void select() {
    for (int64_t i = 0; i < num_active_; ++i) selected_[i] = cached(active_[i]);
    num_missing_ = cache_->select(selected_, static_cast<int32_t>(num_active_));
    if (num_missing_ == 0) return;
    // Those that are here come first, while the others are read.
    int64_t place = 0;
    for (int64_t i = 0; i < num_active_; ++i) {
      if (cache_->is_here(cached(active_[i]))) std::swap(active_[place++], active_[i]);
    }
  }

  void wait_for(int32_t expert) const {
    if (num_missing_ > 0) cache_->wait(cached(expert));
  }

  /// Names what the next layer's router chooses of this layer's input.
  void prefetch(const StepState& step) {
    if (step.tokens > kMostGuessed) return;
    auto next = static_cast<size_t>(layer_) + 1;
    while (next < all_routes_.size() && all_routes_[next] == nullptr) ++next;
    if (next == all_routes_.size()) return;
    const RouteBuffer& routes = *all_routes_[next];
    if (!routes.predict || routes.cached.empty() || routes.top_k > routes_.top_k) return;
    int32_t count = 0;
    for (int32_t token = 0; token < step.tokens; ++token) {
      const int32_t* ids = routes.predict(in_, token);
      for (int32_t i = 0; i < routes.top_k; ++i) {
        guesses_[count++] = routes.cached[static_cast<size_t>(ids[i])];
      }
    }
    cache_->prefetch(guesses_, count);
  }

  int32_t cached(int32_t expert) const { return routes_.cached[static_cast<size_t>(expert)]; }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  RowBuffer& slots_;
  static constexpr int64_t kSlotsPerPiece = 4;
  /// Tokens of a step for which the next layer's experts are guessed.
  static constexpr int32_t kMostGuessed = 4;

  int32_t layer_;
  const std::vector<std::unique_ptr<RouteBuffer>>& all_routes_;  // by layer
  RouteBuffer& routes_;
  int64_t hidden_size_;
  RowBuffer& hidden_;  // [tokens * top_k, intermediate]
  FormedInput token_in_;
  const kernels::Weight* token_weight_ = nullptr;  // an expert's whose input token_in_ makes
  std::vector<bool> is_by_token_;                  // by expert: that is its input
  FormedSlots formed_in_, formed_hidden_;
  float* shared_slots_ = nullptr;  // of all layers
  float* kept_slots_ = nullptr;
  GateAndUp parts_;
  RowBuffer slot_rows_;  // [tokens * top_k, hidden]
  std::vector<FeedForwardWeights> experts_;
  std::optional<ExpertAdapters> adapters_;
  ExpertCache* cache_ = nullptr;
  int threads_ = 1;
  int64_t least_hidden_rows_ = 0, least_out_rows_ = 0;
  int64_t hidden_rows_ = 0, out_rows_ = 0;  // of a piece of this step
  int32_t* token_of_ = nullptr;             // by place: the token
  int32_t* slot_of_ = nullptr;              // by place: token * top_k + slot
  int32_t* active_ = nullptr;               // experts with at least one token
  int32_t* begin_ = nullptr;                // by expert: its first place
  int32_t* selected_ = nullptr;             // the active ones' numbers in the cache
  int32_t* guesses_ = nullptr;              // numbers in the cache of the next layer's
  int64_t num_active_ = 0;
  bool is_by_expert_ = false;  // in this step a piece of the hidden layers is all of an expert
  int32_t num_missing_ = 0;    // of them not in memory
};

std::unique_ptr<PlannedOp> plan_experts(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedExperts>(context, node, node.as<ExpertsParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"experts", plan_experts}));

}  // namespace
}  // namespace vitrine::ops
