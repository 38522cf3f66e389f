// SPDX-License-Identifier: Apache-2.0
// tap: shows rows to whoever reads them, and adds them to the sums that were asked for.
#include "ops/op.h"
#include "ops/taps.h"

namespace vitrine::ops {
namespace {

class PlannedTap final : public PlannedOp {
 public:
  PlannedTap(PlanContext& context, const OpNode& node)
      : tap_(node.as<TapParameters>()),
        book_(*context.taps),
        rows_(tap_.value >= 0
                  ? context.scratch.value(tap_.value)
                  : context.scratch.shared_rows(
                        tap_.rows, context.shape.max_tokens * tap_.per_token, tap_.width)) {
    if (tap_.experts > 0) {
      routes_ = context.scratch.routes[static_cast<size_t>(node.layer)].get();
    }
    // Query, key and value are all there before attention begins.
    context.scratch.head_projections.erase(node.layer);
    Phase phase = make_phase(this, "sums", &PlannedTap::num_tiles, &PlannedTap::add);
    phase.prepare = [this](const StepState& step) { book_.begin(tap_, pass_of(step)); };
    add_phase(std::move(phase));
  }
  std::string kernel_name() const override { return "cpu.tap"; }

 private:
  TapPass pass_of(const StepState& step) const {
    return {rows_.data,
            step.tokens,
            step.token_ids,
            step.positions,
            routes_ != nullptr ? routes_->ids : nullptr,
            routes_ != nullptr ? routes_->weights : nullptr};
  }
  int64_t num_tiles(const StepState&) const { return book_.num_tiles(tap_); }
  void add(const StepState& step, int64_t tile) const { book_.add(tap_, pass_of(step), tile); }

  const TapParameters& tap_;
  TapBook& book_;
  RowBuffer& rows_;
  const RouteBuffer* routes_ = nullptr;
};

std::unique_ptr<PlannedOp> plan_tap(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedTap>(context, node);
}

VITRINE_REGISTER_OP((OpDefinition{"tap", plan_tap}));

}  // namespace
}  // namespace vitrine::ops
