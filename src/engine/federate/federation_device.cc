// SPDX-License-Identifier: Apache-2.0
// A federation whose device makes the joint and chooses by it: one account a row comes back.
#include <algorithm>
#include <cstring>

#include "engine/engine_options.h"
#include "engine/federate/federation_impl.h"
#include "engine/run/executor.h"
#include "engine/run/next_step.h"
#include "engine/run/row_chooser.h"
#include "federation/account.h"

namespace vitrine {

namespace {

kernels::HeadStats stats_of(const int32_t* record) {
  kernels::HeadStats stats;
  std::memcpy(&stats.log_sum_exp, record + engine::kJointLogSumExp, sizeof(float));
  std::memcpy(&stats.entropy, record + engine::kJointEntropy, sizeof(float));
  std::memcpy(&stats.digest, record + engine::kJointDigest, sizeof(stats.digest));
  const int32_t* ids = record + engine::kJointTopIds;
  stats.count = static_cast<int32_t>(std::find(ids, ids + kAuditTopTokens, -1) - ids);
  std::copy_n(ids, stats.count, stats.top_ids);
  std::memcpy(stats.top_logits, record + engine::kJointTopLogits,
              static_cast<size_t>(stats.count) * sizeof(float));
  return stats;
}

}  // namespace

// A combiner that has kernels: one engine whose rows of logits stand side by side makes the joint
// in its own step, of several engines' rows it is made behind their steps.
void Federation::Impl::plan_device_joint(bool has_own_combiner) {
  if (has_own_combiner || !engine::runs_fused_on_cuda(options) ||
      spec.specialists.size() > engine::kMaxJointSpecialists) {
    return;
  }
  engine::DeviceJointSpec& joint_spec = device_joint.emplace();
  joint_spec.combiner = spec.combiner;
  joint_spec.specialists = static_cast<int32_t>(spec.specialists.size());
  joint_spec.max_rows = options.max_logit_rows;
  if (options.sample_on_device.value_or(true)) {
    joint_spec.max_sampled =
        std::min(options.max_logit_rows, options.max_sequences + engine::kDraftRows);
  }
}

// Which rows of the engine's step each row of the joint is of, and how its token is chosen.
bool Federation::Impl::describe_joint() {
  const size_t count = spec.specialists.size(), width = count + 1;
  joint_step.rows.clear();
  joint_step.targets.clear();
  joint_step.steps.clear();
  next_output.assign(engines.size(), 0);
  bool samples = false;
  for (size_t index = 0; index < step_inputs.size(); ++index) {
    const std::span<const engine::StepRow> own = rows.of_input(index);
    const size_t first = joint_step.rows.size();
    joint_step.rows.resize(first + own.size() * width, 0);
    for (size_t source = 0; source < sources.size(); ++source) {
      for (size_t i = 0; i < own.size(); ++i) {
        const auto engine_row = static_cast<int32_t>(next_output[sources[source].engine]++);
        if (source < count) joint_step.rows[first + i * width + source] = engine_row;
        if (source == base) joint_step.rows[first + i * width + count] = engine_row;
      }
    }
    const StepInput& input = step_inputs[index];
    for (const engine::StepRow& row : own) {
      joint_step.targets.push_back(row.target());
      if (!row.is_chosen() || !engine::RowSampler::is_needed(input)) continue;
      if (device_joint->max_sampled == 0 || !engine::RowSampler::has_device_form(input)) {
        return false;
      }
      samples = true;
    }
  }
  joint_step.reads_logits = options.keep_logits;
  joint_step.reads_hidden_states = options.keep_hidden_state && combiner->needs_hidden_state();
  if (!samples) return true;
  joint_step.steps.resize(joint_step.count(), nullptr);
  for (size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].is_chosen() || !engine::RowSampler::is_needed(input_of(row))) continue;
    row_sampler->describe(input_of(row), row, context_of(row), sampler_steps[row]);
    joint_step.steps[row] = &sampler_steps[row];
  }
  return joint_model != nullptr ? joint_model->keep_choosable(joint_step.steps)
                                : runner(0).model().executor->keep_choosable(joint_step.steps);
}

// What follows a step of one engine, where every sequence brings what the joint chooses for it. Of
// several engines' steps none is started before the joint is made.
void Federation::Impl::describe_next_joint() {
  joint_step.next = nullptr;
  joint_step.choosers.clear();
  next_joint.rows.clear();
  next_joint.targets.clear();
  next_joint.steps.clear();
  if (joint_model != nullptr) return;
  const auto width = static_cast<int32_t>(sources.size());
  const auto count = static_cast<int32_t>(spec.specialists.size());
  for (size_t index = 0; index < step_inputs.size(); ++index) {
    const StepInput& input = step_inputs[index];
    if (!engine::NextStep::is_led_on(input)) return;
    const int32_t first = width * static_cast<int32_t>(next_joint.count());
    for (int32_t i = 0; i < count; ++i) next_joint.rows.push_back(first + i);
    next_joint.rows.push_back(base == kNone ? 0 : first + static_cast<int32_t>(base));
    joint_step.choosers.insert(joint_step.choosers.end(), sources.size(),
                               static_cast<int32_t>(rows.first_of(index + 1)) - 1);
    if (engine::RowSampler::is_needed(input)) {
      DeviceSamplerSteps& steps = next_sampler_steps[next_joint.count()];
      const std::vector<int32_t>& history = find(input.sequence).history;
      const auto position = static_cast<int64_t>(history.size()) + 1;
      DeviceForm::describe(*input.sampler, {input.seed, position, input.branch, history},
                           summary.vocab_size, steps);
      next_joint.steps.resize(next_joint.count(), nullptr);
      next_joint.steps.push_back(&steps);
    }
    next_joint.targets.push_back(-1);
  }
  if (!next_joint.steps.empty()) next_joint.steps.resize(next_joint.count(), nullptr);
  if (runner(0).model().executor->keep_choosable(next_joint.steps)) joint_step.next = &next_joint;
}

// joint_step -> joint_result, and the engines' outputs.
void Federation::Impl::step_on_device() {
  if (joint_model == nullptr) {
    engine_outputs[0] = in_engine(0, [&] { return runner(0).step(inputs[0], &joint_step); });
    joint_result = runner(0).last_step().pass.joint;
    return;
  }
  rows_stay.reads_hidden_states = joint_step.reads_hidden_states;
  for (size_t i = 0; i < engines.size(); ++i) {
    engine_outputs[i] = in_engine(i, [&] {
      return attributes() ? runner(i).step_to_rows(inputs[i], &rows_stay)
                          : runner(i).step(inputs[i], &rows_stay);
    });
  }
  const size_t count = spec.specialists.size();
  for (size_t i = 0; i < count; ++i) {
    joint_sources[i] = runner(sources[i].engine).last_step().pass.rows_on_device.logits;
  }
  joint_sources[count] = runner(sources[base].engine).last_step().pass.rows_on_device.hidden_states;
  joint_result = joint_model->run(joint_step, joint_sources);
}

bool Federation::Impl::run_on_device() {
  if (!device_joint || rows.size() == 0 || !describe_joint()) return false;
  describe_next_joint();
  step_on_device();
  outputs.clear();
  engine::AcceptedRows accepted;
  for (size_t row = 0; row < rows.size(); ++row) {
    const StepInput& input = input_of(row);
    if (accepted.has(rows[row], input)) {
      engine::blame(blamed, input.sequence, [&] { take_device_row(row); });
      accepted.choose(rows[row], input, outputs.back().token);
    } else {
      outputs.push_back(output_of(row));
    }
  }
  // A joint that is part of an engine's step has told that step's rows already.
  if (attributes() && joint_model != nullptr) tell_choices();
  return true;
}

std::array<float, 2> Federation::Impl::device_logits(size_t row, size_t specialist) const {
  const auto values = static_cast<size_t>(device_joint->num_values());
  const size_t count = spec.specialists.size();
  const double* logits = joint_result.values + row * values + 1 + 2 * count + specialist;
  return {static_cast<float>(logits[0]), static_cast<float>(logits[count])};
}

void Federation::Impl::take_device_row(size_t row) {
  const engine::DeviceJointResult& result = joint_result;
  const int32_t* record = result.records + row * engine::kJointRecordWords;
  stats[row] = stats_of(record);
  StepOutput output = output_of(row);
  output.token = result.chosen_ids[row];
  if (rows[row].is_chosen() && output.token < 0) {
    if (stats[row].count == 0) refuse_joint(output);
    engine::refuse_choice(output.token == engine::kNothingLeft, output.sequence, output.position,
                          "");
  }
  if (result.logits != nullptr) {
    const auto vocabulary = static_cast<size_t>(summary.vocab_size);
    output.scores = {result.logits + row * vocabulary, vocabulary};
  }
  const size_t count = spec.specialists.size();
  for (size_t i = 0; i < count; ++i) {
    part_rows[row * count + i] = static_cast<size_t>(joint_step.rows[row * (count + 1) + i]);
  }
  if (joint_step.reads_hidden_states) {
    const auto of_base = static_cast<size_t>(joint_step.rows[row * (count + 1) + count]);
    output.hidden_state = engine_outputs[sources[base].engine][of_base].hidden_state;
  }
  RowAccount& account = accounts[row];
  account.joint = nullptr;
  std::memcpy(&account.logprob, record + engine::kJointChosenLogit, sizeof(float));
  if (row < joint_step.steps.size() && joint_step.steps[row] != nullptr) {
    row_sampler->take_facts(row, result.choice_facts + row * engine::kChoiceFacts);
  }
  const double* values = result.values + row * static_cast<size_t>(device_joint->num_values());
  const double *log_sum_exps = values + 1, *logits = log_sum_exps + 2 * count;
  const std::span<const double> weights(log_sum_exps + count, count);
  const std::span<SpecialistShare> own(shares.data() + row * count, count);
  for (size_t i = 0; i < count; ++i) own[i].logprob = logits[i] - log_sum_exps[i];
  account.score = spec.combiner.kind == CombinerSpec::Kind::kProduct
                      ? federation::account_of_product(weights, values[0], own)
                      : federation::account_of_mixture(weights, own);
  account.residual = engine::reconcile(layout.federation.shares, account.score, own);
  outputs.push_back(output);
}

}  // namespace vitrine
