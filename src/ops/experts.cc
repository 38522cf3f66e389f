// experts: the routed experts of a layer. Tokens are grouped by expert; each expert's output for
// each of its tokens lands in that token's slot, [tokens, top_k, hidden], where `combine` (and
// later attribution) finds it.
#include <vector>

#include "ops/feed_forward.h"
#include "ops/op.h"
#include "ops/reference.h"

namespace vitrine::ops {
namespace {

std::string expert_module(const OpNode& node, int64_t expert, const char* role) {
  return node.weight("prefix") + std::to_string(expert) + "." + node.weight(role);
}

class PlannedExperts final : public PlannedOp {
 public:
  PlannedExperts(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.value(node.inputs[0])),
        slots_(context.value(node.outputs[0])),
        routes_(*context.routes[static_cast<size_t>(node.layer)]),
        hidden_size_(in_.width),
        hidden_(context.shared_rows("expert_hidden", context.max_tokens * routes_.top_k,
                                    node.integer("intermediate"))) {
    const int64_t intermediate = node.integer("intermediate");
    const int64_t num_slots = context.max_tokens * routes_.top_k;
    slot_rows_.data = slots_.data;
    slot_rows_.width = hidden_size_;
    slot_rows_.capacity = num_slots;
    experts_.resize(static_cast<size_t>(routes_.num_experts));
    cache_ = context.weights.experts();
    for (int64_t expert = 0; expert < routes_.num_experts; ++expert) {
      FeedForwardWeights& weights = experts_[static_cast<size_t>(expert)];
      const ExpertModules modules{expert_module(node, expert, "gate"),
                                  expert_module(node, expert, "up"),
                                  expert_module(node, expert, "down"), hidden_size_, intermediate};
      if (cache_ != nullptr) {
        cached_.push_back(cache_->add(modules));
        const ExpertMatrices& matrices = cache_->matrices(cached_.back());
        weights = {&matrices.gate, &matrices.up, &matrices.down};
      } else {
        weights.gate = &context.weights.matrix(modules.gate, intermediate, hidden_size_);
        weights.up = &context.weights.matrix(modules.up, intermediate, hidden_size_);
        weights.down = &context.weights.matrix(modules.down, hidden_size_, intermediate);
      }
      context.need(in_, *weights.gate);
      context.need(in_, *weights.up);
      context.need(hidden_, *weights.down);
    }
    hidden_rows_ = hidden_rows_per_piece(hidden_, context.threads);
    out_rows_ = rows_per_piece(hidden_size_, context.threads, kernels::kTileRows);
    token_of_ = context.shared_array<int32_t>("token_of", num_slots);
    slot_of_ = context.shared_array<int32_t>("slot_of", num_slots);
    active_ = context.shared_array<int32_t>("active", routes_.num_experts);
    selected_ = context.shared_array<int32_t>("selected", routes_.num_experts);
    begin_ = context.shared_array<int32_t>("begin", routes_.num_experts + 1);
  }

  // 0: grouping. 1: experts that are not in memory are read. 2: hidden layers, per active expert
  // and row block. 3: outputs, likewise.
  int phases() const override { return 4; }
  int64_t pieces(const StepState&, int phase) const override {
    if (phase == 0) return 1;
    if (phase == 1) return num_missing_;
    if (phase == 2 && num_missing_ > 0) cache_->finish();
    const int64_t blocks =
        phase == 2 ? divide_up(hidden_.width, hidden_rows_) : divide_up(hidden_size_, out_rows_);
    return num_active_ * blocks;
  }

  void run(const StepState& step, int phase, int64_t piece) override {
    if (phase == 0) {
      group(step);
      if (cache_ != nullptr) select();
      return;
    }
    if (phase == 1) return cache_->read(static_cast<int32_t>(piece));
    const int32_t expert = active_[piece % num_active_];
    const int64_t block = piece / num_active_;
    const FeedForwardWeights& weights = experts_[static_cast<size_t>(expert)];
    kernels::RowMap rows;
    rows.count = begin_[expert + 1] - begin_[expert];
    rows.out_rows = slot_of_ + begin_[expert];
    if (phase == 2) {
      rows.in_rows = token_of_ + begin_[expert];
      run_hidden(kernel_, products_, weights, in_, hidden_, rows, block * hidden_rows_,
                 std::min(hidden_.width, (block + 1) * hidden_rows_));
    } else {
      rows.in_rows = slot_of_ + begin_[expert];
      products_.linear(*weights.down, block * out_rows_,
                       std::min(hidden_size_, (block + 1) * out_rows_),
                       activations(hidden_, *weights.down), rows, nullptr, nullptr, slot_rows_.data,
                       slot_rows_.width);
    }
  }

  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".grouped_" + weight_kernel_name(*experts_[0].gate) +
           "+" + weight_kernel_name(*experts_[0].down);
  }
  uint64_t weight_bytes() const override {
    return experts_[0].bytes() * static_cast<uint64_t>(routes_.top_k);
  }

 private:
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
    for (int64_t i = 0; i < num_active_; ++i) {
      selected_[i] = cached_[static_cast<size_t>(active_[i])];
    }
    num_missing_ = cache_->select(selected_, static_cast<int32_t>(num_active_));
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  RowBuffer& slots_;
  RouteBuffer& routes_;
  int64_t hidden_size_;
  RowBuffer& hidden_;    // [tokens * top_k, intermediate]
  RowBuffer slot_rows_;  // [tokens * top_k, hidden]
  std::vector<FeedForwardWeights> experts_;
  ExpertCache* cache_ = nullptr;
  std::vector<int32_t> cached_;  // by expert: its number in the cache
  int64_t hidden_rows_ = 0, out_rows_ = 0;
  int32_t* token_of_ = nullptr;  // by place: the token
  int32_t* slot_of_ = nullptr;   // by place: token * top_k + slot
  int32_t* active_ = nullptr;    // experts with at least one token
  int32_t* begin_ = nullptr;     // by expert: its first place
  int32_t* selected_ = nullptr;  // the active ones' numbers in the cache
  int64_t num_active_ = 0;
  int32_t num_missing_ = 0;  // of them not in memory
};

std::unique_ptr<PlannedOp> plan(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedExperts>(context, node);
}

// Every expert on all rows, weighted by a scattered [tokens, experts] matrix: no shape depends on a
// value.
void reference(ReferenceStep& step, const OpNode& node) {
  const auto layer = static_cast<size_t>(node.layer);
  const at::Tensor& x = step.input(node, 0);
  const at::Tensor& ids = step.routes_ids[layer];
  const int64_t experts = node.integer("experts");
  at::Tensor weights =
      at::zeros({x.size(0), experts}, x.options()).scatter(1, ids, step.routes_weights[layer]);
  at::Tensor sum;
  for (int64_t expert = 0; expert < experts; ++expert) {
    at::Tensor out =
        step.feed_forward(x, expert_module(node, expert, "gate"), expert_module(node, expert, "up"),
                          expert_module(node, expert, "down"), x.size(1),
                          node.integer("intermediate"))
            .mul(weights.narrow(1, expert, 1));
    if (step.attribution != nullptr) step.attribution->experts.push_back(out);
    sum = expert == 0 ? out : sum.add(out);
  }
  step.value(node.outputs[0]) = sum;
}

VITRINE_REGISTER_OP((OpDefinition{"experts", plan, reference}));

}  // namespace
}  // namespace vitrine::ops
