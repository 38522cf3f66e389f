#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "candidates.h"
#include "vitrine/sample.h"

namespace vitrine {

struct SamplerPipeline::Impl {
  std::vector<std::unique_ptr<SamplerStage>> stages;
  std::vector<float> logits;
  std::vector<int32_t> ids;
  SampleDecision decision;
  std::span<const uint32_t> allowed_tokens;  // of the next sample()
  bool is_forced = false;
  bool was_constrained = false;
  std::vector<int64_t> forced_positions;  // ascending

  bool has_constraint_stage() const {
    return std::ranges::any_of(
        stages, [](const auto& stage) { return stage->stage_id() == kConstraintStageId; });
  }
  void forget_forced_from(int64_t position) {
    forced_positions.erase(std::ranges::lower_bound(forced_positions, position),
                           forced_positions.end());
  }
};

SamplerPipeline::SamplerPipeline() : impl_(std::make_unique<Impl>()) {}
SamplerPipeline::SamplerPipeline(SamplerPipeline&&) noexcept = default;
SamplerPipeline& SamplerPipeline::operator=(SamplerPipeline&&) noexcept = default;
SamplerPipeline::~SamplerPipeline() = default;

SamplerPipeline SamplerPipeline::from_options(const SamplerOptions& options) {
  // A stage is made for each option that is not at its "off" value, so that its factory checks it;
  // greedy uses none of them, but a value out of range is refused all the same.
  std::vector<std::unique_ptr<SamplerStage>> stages;
  if (options.temperature != 0.0f) stages.push_back(make_temperature_stage(options.temperature));
  if (options.top_k != 0) stages.push_back(make_top_k_stage(options.top_k));
  if (options.top_p != 1.0f) stages.push_back(make_top_p_stage(options.top_p));
  if (options.min_p != 0.0f) stages.push_back(make_min_p_stage(options.min_p));
  SamplerPipeline pipeline;
  pipeline.add(make_constraint_stage());
  if (options.temperature == 0.0f) {
    pipeline.add(make_greedy_stage());
    return pipeline;
  }
  for (auto& stage : stages) pipeline.add(std::move(stage));
  pipeline.add(make_draw_stage());
  return pipeline;
}

void SamplerPipeline::add(std::unique_ptr<SamplerStage> stage) {
  if (stage == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, "sampler: the stage to add is null; expected a stage");
  }
  impl_->stages.push_back(std::move(stage));
}

const std::vector<std::unique_ptr<SamplerStage>>& SamplerPipeline::stages() const {
  return impl_->stages;
}

bool SamplerPipeline::is_device_greedy() const {
  const auto& stages = impl_->stages;
  if (stages.empty() || impl_->was_constrained || !stages.back()->is_device_greedy()) return false;
  return std::all_of(stages.begin(), stages.end() - 1,
                     [](const auto& stage) { return stage->stage_id() == kConstraintStageId; });
}

void SamplerPipeline::set_allowed_tokens(std::span<const uint32_t> mask, bool is_forced) {
  if (mask.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "sampler: the constraint's mask is empty; expected one bit for each token");
  }
  if (!impl_->has_constraint_stage()) {
    throw Error(ErrorKind::kInvalidArgument,
                "sampler: a constraint set a mask, but the pipeline has no stage 'constraint'; "
                "expected one before the stages that narrow the choice");
  }
  impl_->allowed_tokens = mask;
  impl_->is_forced = is_forced;
  impl_->was_constrained = true;
}

void SamplerPipeline::mark_forced(int64_t first, int64_t count) {
  impl_->forget_forced_from(first);
  for (int64_t i = 0; i < count; ++i) impl_->forced_positions.push_back(first + i);
}

int32_t SamplerPipeline::sample(std::span<const float> logits, const SampleContext& given_context) {
  SampleContext context = given_context;
  // The mask serves one call, also one that fails.
  const std::span<const uint32_t> mask = std::exchange(impl_->allowed_tokens, {});
  const bool is_forced = std::exchange(impl_->is_forced, false);
  if (!mask.empty()) {
    context.allowed_tokens = mask;
    context.is_forced = is_forced;
  }
  impl_->forget_forced_from(context.position);
  if (!impl_->forced_positions.empty()) context.forced_positions = impl_->forced_positions;
  const size_t count = logits.size();
  const auto where = [&] { return "sampler at position " + std::to_string(context.position); };
  if (count == 0 || count > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw Error(ErrorKind::kInvalidArgument,
                where() + ": " + std::to_string(count) + " logits; expected one for each token");
  }
  if (impl_->logits.size() < count) {
    impl_->logits.resize(count);
    impl_->ids.resize(count);
  }
  size_t bad = 0;
  for (size_t id = 0; id < count; ++id) {
    impl_->logits[id] = logits[id];
    // False for NaN and +infinity alike.
    bad += !(logits[id] < std::numeric_limits<float>::infinity());
  }
  if (bad != 0) {
    size_t id = 0;
    while (logits[id] < std::numeric_limits<float>::infinity()) ++id;
    throw Error(ErrorKind::kInvalidArgument,
                where() + ": the logit of token " + std::to_string(id) + " is " +
                    (std::isnan(logits[id]) ? "NaN" : "+infinity") + " (" + std::to_string(bad) +
                    " such logits); expected finite numbers or -infinity: the weights or the " +
                    "kernels are broken");
  }
  Candidates candidates;
  candidates.logits = std::span<float>(impl_->logits).first(count);
  candidates.logits_storage = &impl_->logits;
  candidates.ids_storage = &impl_->ids;
  for (const auto& stage : impl_->stages) stage->apply(candidates, context);
  if (candidates.selected < 0 || static_cast<size_t>(candidates.selected) >= count) {
    throw Error(ErrorKind::kInvalidArgument,
                where() + ": the pipeline selected " +
                    (candidates.selected < 0 ? "nothing" : std::to_string(candidates.selected)) +
                    "; expected an id below " + std::to_string(count) +
                    " (end the pipeline with a draw or greedy stage)");
  }
  // Greedy leaves a choice of one, however many it looked at.
  const bool is_certain = candidates.selected_probability == 1.0f;
  const auto left = std::count_if(candidates.logits.begin(), candidates.logits.end(),
                                  [](float logit) { return logit > kRuledOut; });
  impl_->decision = {is_certain ? 1 : static_cast<int32_t>(left), candidates.selected_probability};
  if (context.is_forced) impl_->forced_positions.push_back(context.position);
  return candidates.selected;
}

const SampleDecision& SamplerPipeline::decision() const { return impl_->decision; }

}  // namespace vitrine
