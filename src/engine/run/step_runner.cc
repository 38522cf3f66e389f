// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_runner.h"

#include <algorithm>

#include "engine/run/lone_failures.h"
#include "ops/draft_input.h"

namespace vitrine::engine {

namespace {

// The trees of a step have no more; CUDA's kernels have a bit for each (RopeKv::branches).
constexpr size_t kMaxBranches = 255;

// Appends each token's part of the input's routes.
void append_routes(const StepInput& input, std::vector<std::span<const ForcedRoute>>& routes) {
  size_t next = 0;
  for (size_t token = 0; token < input.tokens.size(); ++token) {
    const size_t first = next;
    while (next < input.routes.size() && input.routes[next].token == static_cast<int32_t>(token)) {
      ++next;
    }
    routes.push_back(input.routes.subspan(first, next - first));
  }
}

}  // namespace

StepRunner::StepRunner(LoadedModel& model)
    : model_(model),
      trees_(model.pool, step_),
      recorder_(model.layout, model.options),
      recomputer_(model, step_),
      chooser_(model, step_, trees_, recorder_),
      next_step_(model.config.vocab_size, model.options.max_context),
      checks_(model, trees_) {
  const auto rows = static_cast<size_t>(model.options.max_logit_rows);
  step_.reserve(model.options);
  outputs_.reserve(rows);
  if (model.executor->runs_trees() && rows > 1) {
    trees_.reserve(static_cast<size_t>(model.options.max_step_tokens),
                   std::min(rows, kMaxBranches));
    recorder_.reserve_trees();
  }
  if (model.executor->runs_ahead()) next_step_.reserve(rows);
}

std::span<const StepOutput> StepRunner::step(std::span<const StepInput> inputs,
                                             const DeviceJointStep* joint) {
  step_.blamed = 0;
  checks_.check(inputs);
  step_.begin(inputs, whole(), model_.options.cancelled);
  if (joint != nullptr || !takes_leads()) leads_.clear();
  if (leads_.take(inputs, model_.pool, recorder_.records())) leads_.lead(step_);
  try {
    run_to_rows(joint, ChoicePoint::kBehindPass);
    run_from_rows();
  } catch (...) {
    undo();
    throw;
  }
  recomputer_.settle(inputs);
  return outputs_;
}

std::span<const StepOutput> StepRunner::step_to_rows(std::span<const StepInput> inputs,
                                                     const DeviceJointStep* joint) {
  step_.blamed = 0;
  checks_.check(inputs);
  step_.begin(inputs, whole(), model_.options.cancelled);
  leads_.clear();
  try {
    run_to_rows(joint, ChoicePoint::kBehindHead);
  } catch (...) {
    undo();
    throw;
  }
  chooser_.leave_open(outputs_);
  return outputs_;
}

void StepRunner::step_from_rows(std::span<const int32_t> chosen,
                                std::span<const int32_t> runners_up) {
  step_.batch.chosen.assign(chosen.begin(), chosen.end());
  step_.batch.runners_up.assign(runners_up.begin(), runners_up.end());
  try {
    run_from_rows();
  } catch (...) {
    undo();
    throw;
  }
  recomputer_.settle(step_.inputs);
}

std::span<const StepOutput> StepRunner::step_part(std::span<const StepInput> inputs,
                                                  const StepPart& part) {
  step_.blamed = 0;
  checks_.check_layers(inputs, part.layers, part.residual, recorder_.records());
  step_.begin(inputs, part, model_.options.cancelled);
  kv::BlockPool& pool = model_.pool;
  for (const StepInput& input : inputs) pool.hold_layers(input.sequence);
  try {
    run_to_rows(nullptr, ChoicePoint::kBehindPass);
    run_from_rows();
  } catch (...) {
    undo();
    throw;
  }
  for (const RunningStep::Part& of : step_.parts) {
    pool.set_layer_length(of.sequence, part.layers.first, part.layers.end, of.past + of.num_tokens);
  }
  recomputer_.settle(inputs);
  return outputs_;
}

// `point` says whether somebody outside chooses behind the head.
void StepRunner::run_to_rows(const DeviceJointStep* joint, ChoicePoint point) {
  StepBatch& batch = step_.batch;
  step_.parts.clear();
  recomputer_.begin_pass();
  for (const StepInput& input : step_.inputs) {
    blame(step_.blamed, input.sequence, [&] { recomputer_.catch_up(input.sequence); });
  }
  make_batch(joint);
  step_.pass = {};
  step_.pass.words = recorder_.records()            ? recorder_.begin(step_.rows, !trees_.empty())
                     : step_.guess_words != nullptr ? step_.guess_words
                                                    : step_.own_words();
  if (step_.begins_at_bottom()) append_tokens();
  chooser_.describe();
  const bool is_outside = point == ChoicePoint::kBehindHead;
  if (is_outside) batch.choice_point = point;
  const bool leads_on = step_.is_whole(model_.graph) && model_.executor->runs_ahead() &&
                        batch.choice_point != ChoicePoint::kBehindHead;
  batch.next = leads_on
                   ? next_step_.make(step_.inputs, step_.rows, batch, model_.pool, *model_.executor)
                   : nullptr;
  model_.executor->run_to_choice(batch, step_.pass);
  if (batch.choice_point == ChoicePoint::kBehindHead && !is_outside) chooser_.choose_behind_head();
}

void StepRunner::make_batch(const DeviceJointStep* joint) {
  StepBatch& batch = step_.batch;
  batch.clear();
  step_.rows.clear();
  trees_.clear();
  const bool has_words = recorder_.records() || step_.guess_words != nullptr;
  batch.audit_mode = has_words ? model_.layout.mode : AuditMode::kNone;
  batch.runs_head = !model_.options.hidden_states_only;
  batch.first_layer = step_.first_layer;
  batch.end_layer = step_.layers.end;
  batch.residual = step_.residual;
  batch.reads_residual =
      step_.layers.end < model_.graph.num_layers || ops::takes_rows(model_.graph);
  const bool forces_routes = std::ranges::any_of(
      step_.inputs, [](const StepInput& input) { return !input.routes.empty(); });
  for (const StepInput& input : step_.inputs) {
    if (forces_routes) append_routes(input, batch.forced_routes);
    add(input);
  }
  trees_.end(batch);
  chooser_.prepare(joint);
}

// An input becomes a span of the batch, or those of its tree.
void StepRunner::add(const StepInput& input) {
  kv::BlockPool& pool = model_.pool;
  StepBatch& batch = step_.batch;
  const auto count = static_cast<int32_t>(input.tokens.size());
  const auto first_token = static_cast<int32_t>(batch.token_ids.size());
  const int64_t past = pool.layer_length(input.sequence, step_.layers.first);
  step_.parts.push_back({input.sequence, past, first_token, count});
  step_.rows.add(input, past);
  if (DraftTree::is_tree(input)) return trees_.add(input, past, batch);
  if (step_.begins_at_bottom()) pool.prepare(input.sequence, count);
  const kv::SequenceBlocks& blocks = pool.get(input.sequence);
  BatchSpan& span =
      batch.spans.emplace_back(BatchSpan{first_token, count, past, blocks.blocks.data()});
  recomputer_.take_state(input, past, span);
  if (!input.routes.empty()) pool.set_forced_end(input.sequence, past + count);
  batch.span_adapters.push_back(blocks.adapter);
  for (int32_t i = 0; i < count; ++i) {
    batch.token_ids.push_back(input.tokens[static_cast<size_t>(i)]);
    batch.positions.push_back(static_cast<int32_t>(past) + i);
    batch.block_tables.push_back(blocks.blocks.data());
  }
}

// Before the pass, so that a sampler in it sees them. Drafts of a tree come when they are chosen.
void StepRunner::append_tokens() {
  for (const StepInput& input : step_.inputs) {
    const size_t later = DraftTree::is_tree(input) ? static_cast<size_t>(input.num_drafts) : 0;
    model_.pool.append(input.sequence, input.tokens.data(),
                       static_cast<int64_t>(input.tokens.size() - later));
  }
}

void StepRunner::run_from_rows() {
  model_.executor->run_from_choice(step_.batch, step_.pass);
  if (recorder_.records() && step_.is_led()) {
    leads_.copy_words(step_.pass.words +
                      model_.layout.pass_words(step_.rows.size(), 0) * sizeof(int32_t));
  }
  chooser_.finish(outputs_);
  if (!trees_.empty()) {
    trees_.adopt();
    recorder_.keep(trees_.kept_tokens(), step_.batch.row_tokens);
    trees_.clear();
  }
  recorder_.end(step_.blamed);
}

// Gives back what a pass that failed had taken, wherever it failed.
void StepRunner::undo() {
  kv::BlockPool& pool = model_.pool;
  trees_.clear();
  if (step_.begins_at_bottom()) {  // else it took nothing
    for (size_t i = 0; i < step_.inputs.size(); ++i) {
      const SequenceId sequence = step_.inputs[i].sequence;
      pool.truncate(sequence,
                    i < step_.parts.size() ? step_.parts[i].past : pool.get(sequence).length);
    }
  }
  step_.parts.clear();
}

void StepRunner::truncate(SequenceId sequence, int64_t length) {
  model_.pool.truncate(sequence, length);
  recomputer_.replay(sequence);
}

void StepRunner::keep(SequenceId sequence, int64_t count) {
  model_.pool.keep(sequence, count);
  recomputer_.replay(sequence);
}

void StepRunner::preempt(SequenceId sequence) {
  model_.pool.give_up(sequence);
  recomputer_.forget(sequence);
  leads_.clear();
}

void StepRunner::restore_matrix(const std::string& module) {
  model_.executor->restore_matrix(module);
  leads_.clear();
}

void StepRunner::forget_layer(int layer) {
  const int count = model_.graph.num_layers;
  if (layer < 0 || layer >= count) {
    throw Error(ErrorKind::kInvalidArgument, "layer " + std::to_string(layer) +
                                                 " is to be forgotten; expected 0 to " +
                                                 std::to_string(count - 1));
  }
  require_layers(model_);
  leads_.clear();
  if (!model_.executor->keeps_own(layer)) return;
  model_.pool.forget_layer(layer);  // which may refuse
  model_.executor->forget_layer(layer);
}

std::span<const float> StepRunner::features(SequenceId sequence) const {
  if (model_.options.feature_layers.empty()) return {};
  const auto part = std::ranges::find(step_.parts, sequence, &RunningStep::Part::sequence);
  if (part == step_.parts.end()) return {};
  return model_.features.rows(part->first_token, part->num_tokens);
}

void StepRunner::set_audit_mode(AuditMode mode) {
  model_.executor->check_audit_mode(mode);
  model_.layout.mode = mode;
}

bool StepRunner::takes_leads() const {
  if (model_.taps) return false;
  const bool is_joined = model_.layout.mode == AuditMode::kDeferred && runs_fused(model_.options);
  return !recorder_.records() || (is_joined && !model_.options.attribution);
}

}  // namespace vitrine::engine
