// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "candidates.h"
#include "device_steps.h"
#include "shortlist.h"
#include "vitrine/sample.h"

namespace vitrine {

struct SamplerPipeline::Impl {
  std::vector<std::unique_ptr<SamplerStage>> stages;
  std::vector<RoomStage*> room_stages;  // the same; null for a host's own
  std::vector<float> logits;
  std::vector<int32_t> ids;
  Shortlist shortlist;
  SampleDecision decision;
  std::span<const uint32_t> allowed_tokens;  // of the next sample()
  bool is_forced = false;
  bool was_constrained = false;
  std::vector<int64_t> forced_positions;  // ascending

  SampleContext take_context(const SampleContext& given);
  bool has_constraint_stage() const {
    return std::ranges::any_of(
        stages, [](const auto& stage) { return stage->stage_id() == kConstraintStageId; });
  }
  void forget_forced_from(int64_t position) {
    forced_positions.erase(std::ranges::lower_bound(forced_positions, position),
                           forced_positions.end());
  }
  void scan(std::span<const float> given, const SampleContext& context);
  void run_stages(std::span<const float> given, Candidates& candidates,
                  const SampleContext& context);
};

SamplerPipeline::SamplerPipeline() : impl_(std::make_unique<Impl>()) {}
SamplerPipeline::SamplerPipeline(SamplerPipeline&&) noexcept = default;
SamplerPipeline& SamplerPipeline::operator=(SamplerPipeline&&) noexcept = default;
SamplerPipeline::~SamplerPipeline() = default;

void SamplerPipeline::add(std::unique_ptr<SamplerStage> stage) {
  if (stage == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, "sampler: the stage to add is null; expected a stage");
  }
  impl_->room_stages.push_back(dynamic_cast<RoomStage*>(stage.get()));
  impl_->stages.push_back(std::move(stage));
}

SamplerPipeline SamplerPipeline::fork() const {
  SamplerPipeline copy;
  for (const auto& stage : impl_->stages) {
    auto forked = stage->fork();
    if (forked == nullptr) {
      throw Error(ErrorKind::kUnsupported, "sampler stage '" + std::string(stage->name()) +
                                               "' cannot be forked; expected its fork() to make "
                                               "a copy");
    }
    copy.add(std::move(forked));
  }
  copy.impl_->was_constrained = impl_->was_constrained;
  copy.impl_->forced_positions = impl_->forced_positions;
  return copy;
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
  constexpr int64_t kMax = int64_t{1} << 24;  // beyond any context
  if (first < 0 || count < 0 || count > kMax) {
    throw Error(ErrorKind::kInvalidArgument,
                "forced positions from " + std::to_string(first) + " on, " + std::to_string(count) +
                    " of them; expected a position, and 0 to " + std::to_string(kMax));
  }
  impl_->forget_forced_from(first);
  for (int64_t i = 0; i < count; ++i) impl_->forced_positions.push_back(first + i);
}

namespace {

bool is_no_logit(float logit) { return !(logit < std::numeric_limits<float>::infinity()); }

// `ids`: of the logits, or empty. `cause` ends the message.
[[noreturn]] void refuse_logits(std::span<const float> given, std::span<const int32_t> ids,
                                const SampleContext& context, const std::string& cause) {
  const auto first = std::ranges::find_if(given, is_no_logit);
  const auto index = static_cast<size_t>(first - given.begin());
  throw Error(ErrorKind::kInvalidArgument,
              "sampler at position " + std::to_string(context.position) + ": the logit of token " +
                  std::to_string(ids.empty() ? static_cast<int32_t>(index) : ids[index]) + " is " +
                  (std::isnan(*first) ? "NaN" : "+infinity") + " (" +
                  std::to_string(std::ranges::count_if(given, is_no_logit)) +
                  " such logits); expected finite numbers or -infinity: " + cause);
}

}  // namespace

// Refuses what is no logit, and knows the maxima afterwards.
void SamplerPipeline::Impl::scan(std::span<const float> given, const SampleContext& context) {
  if (shortlist.scan(given)) return;
  refuse_logits(given, {}, context, "the weights or the kernels are broken");
}

// Where the stages ahead keep few tokens whatever the rest is, they see those few alone.
void SamplerPipeline::Impl::run_stages(std::span<const float> given, Candidates& candidates,
                                       const SampleContext& context) {
  const std::span<RoomStage* const> all(room_stages);
  bool is_dense = true, is_copied = false;
  for (size_t index = 0; index < stages.size(); ++index) {
    if (room_stages[index] != nullptr && room_stages[index]->is_idle(context)) continue;
    if (is_dense) {
      const auto ahead = all.subspan(index);
      if (!is_copied && shortlist.take(given, ahead, context, candidates)) {
        is_dense = false;
      } else if (!is_copied) {
        std::ranges::copy(given, logits.begin());
        is_copied = true;
      } else if (Shortlist::may_take(ahead, context) && shortlist.scan(candidates.logits) &&
                 shortlist.take(candidates.logits, ahead, context, candidates)) {
        is_dense = false;
      }
    }
    stages[index]->apply(candidates, context);
    // A stage of the host's own is held to what the model is.
    if (room_stages[index] == nullptr && std::ranges::any_of(candidates.logits, is_no_logit)) {
      refuse_logits(candidates.logits, candidates.ids, context,
                    "stage '" + std::string(stages[index]->name()) + "' left it");
    }
    is_dense = is_dense && candidates.ids.empty() && candidates.logits.size() == given.size();
  }
}

// The mask serves one call, also one that fails.
SampleContext SamplerPipeline::Impl::take_context(const SampleContext& given) {
  SampleContext context = given;
  const std::span<const uint32_t> mask = std::exchange(allowed_tokens, {});
  const bool was_forced = std::exchange(is_forced, false);
  if (!mask.empty()) {
    context.allowed_tokens = mask;
    context.is_forced = was_forced;
  }
  forget_forced_from(context.position);
  if (!forced_positions.empty()) context.forced_positions = forced_positions;
  return context;
}

bool SamplerPipeline::has_device_form() const {
  return std::ranges::all_of(impl_->room_stages, [](const RoomStage* stage) {
    return stage != nullptr && stage->has_device_form();
  });
}

bool DeviceForm::looks_back(const SamplerPipeline& pipeline) {
  return std::ranges::any_of(pipeline.impl_->room_stages, [](const RoomStage* stage) {
    return stage == nullptr || !stage->has_device_form() || stage->looks_back();
  });
}

void DeviceForm::describe(SamplerPipeline& pipeline, const SampleContext& given_context,
                          int64_t vocab_size, DeviceSamplerSteps& steps) {
  steps.clear();
  if (!pipeline.has_device_form()) {
    throw Error(ErrorKind::kUnsupported,
                "sampler: a stage of this pipeline runs on the host only (mirostat, or a stage of "
                "the host's own); read the logits and call sample()");
  }
  SamplerPipeline::Impl& impl = *pipeline.impl_;
  const SampleContext context = impl.take_context(given_context);
  for (RoomStage* stage : impl.room_stages) {
    if (!stage->is_idle(context)) stage->describe(context, vocab_size, steps);
  }
  if (context.is_forced) impl.forced_positions.push_back(context.position);
}

DeviceSamplerStep& DeviceSamplerSteps::add(DeviceSamplerStep::Kind kind, double a, double b,
                                           double c) {
  if (count_ == steps_.size()) steps_.emplace_back();
  DeviceSamplerStep& step = steps_[count_++];
  step.kind = kind;
  step.a = a;
  step.b = b;
  step.c = c;
  step.ids.clear();
  step.values.clear();
  step.mask = {};
  return step;
}

int32_t SamplerPipeline::sample(std::span<const float> logits, const SampleContext& given_context) {
  const SampleContext context = impl_->take_context(given_context);
  const size_t count = logits.size();
  const auto where = [&] { return "sampler at position " + std::to_string(context.position); };
  if (count == 0 || count > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw Error(ErrorKind::kInvalidArgument,
                where() + ": " + std::to_string(count) + " logits; expected one for each token");
  }
  if (impl_->logits.size() < count) {
    impl_->logits.resize(count);
    impl_->ids.resize(count);
    impl_->shortlist.reserve(count);
  }
  impl_->scan(logits, context);
  Candidates candidates;
  candidates.logits = std::span<float>(impl_->logits).first(count);
  candidates.logits_storage = &impl_->logits;
  candidates.ids_storage = &impl_->ids;
  impl_->run_stages(logits, candidates, context);
  if (candidates.selected < 0 || static_cast<size_t>(candidates.selected) >= count) {
    throw Error(ErrorKind::kInvalidArgument,
                where() + ": the pipeline selected " +
                    (candidates.selected < 0 ? "nothing" : std::to_string(candidates.selected)) +
                    "; expected an id below " + std::to_string(count) +
                    " (end the pipeline with a draw or greedy stage)");
  }
  // Greedy leaves a choice of one, however many it looked at.
  const bool is_certain = candidates.selected_probability == 1.0f;
  const auto left = is_certain ? 1 : std::ranges::count_if(candidates.logits, [](float logit) {
    return logit > kRuledOut;
  });
  impl_->decision = {static_cast<int32_t>(left), candidates.selected_probability};
  if (context.is_forced) impl_->forced_positions.push_back(context.position);
  return candidates.selected;
}

const SampleDecision& SamplerPipeline::decision() const { return impl_->decision; }

}  // namespace vitrine
