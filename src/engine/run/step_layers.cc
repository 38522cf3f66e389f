// SPDX-License-Identifier: Apache-2.0
// Steps of a part of the depth.
#include <utility>

#include "engine/engine_options.h"
#include "engine/model_checks.h"
#include "engine/run/kv_choice.h"
#include "engine/run/step_fit.h"
#include "engine/run/step_runner.h"
#include "ops/draft_input.h"

namespace vitrine::engine {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, what);
}

std::string name_of(SequenceId sequence) { return "sequence " + std::to_string(sequence); }

// What layers further up run: tokens that those below have seen, and they not.
void check_continued(const StepInput& input, const kv::BlockPool& pool, LayerRange layers) {
  const auto count = static_cast<int64_t>(input.tokens.size());
  const int64_t past = pool.layer_length(input.sequence, layers.first);
  const int64_t seen = pool.layer_length(input.sequence, layers.first - 1);
  if (past + count > seen) {
    refuse(name_of(input.sequence) + " brings " + std::to_string(count) + " tokens to layer " +
           std::to_string(layers.first) + ", but the layer below has seen " +
           std::to_string(seen - past) + " that it has not; expected at most those");
  }
  const std::span<const int32_t> history = pool.get(input.sequence).history;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t own = history[static_cast<size_t>(past + i)];
    const int32_t given = input.tokens[static_cast<size_t>(i)];
    if (own == given) continue;
    refuse(name_of(input.sequence) + " has token " + std::to_string(own) + " at position " +
           std::to_string(past + i) + ", and brings " + std::to_string(given) +
           " to a higher layer; expected the same");
  }
}

}  // namespace

void StepRunner::require_layers() const {
  if (!executor_->runs_layers()) {
    require_codec_feature(options_, KvFeature::kPartialDepth, "steps of a part of the layers");
    throw Error(
        ErrorKind::kUnsupported,
        "CUDA's fused kernels run all layers or none, so no early exit guesses there (exit, "
        "hispec); use --kernels reference or --device cpu");
  }
  if (graph_.has_state()) {
    throw Error(ErrorKind::kUnsupported,
                "some layers of this model keep a state of a sequence, which a step of a part of "
                "the layers would leave behind, so no early exit guesses for it (exit, hispec); "
                "expected a step of all layers, another drafter, or a model without such layers");
  }
}

void StepRunner::check_layers(std::span<const StepInput> inputs,
                              std::span<const float> residual) const {
  const int count = graph_.num_layers;
  if (layers_.first < 0 || layers_.first >= layers_.end || layers_.end > count) {
    refuse("layers " + std::to_string(layers_.first) + " to " + std::to_string(layers_.end) +
           " (excluded) were asked for; expected some of 0 to " + std::to_string(count));
  }
  require_layers();
  if (records() && !is_whole()) {
    throw Error(ErrorKind::kUnsupported,
                "a step of some layers is no pass that could be recorded; expected no audit sink, "
                "or set_audit_mode(kNone) meanwhile");
  }
  size_t tokens = 0;
  for (const StepInput& input : inputs) {
    tokens += input.tokens.size();
    const int64_t past = past_of(input.sequence);
    for (int layer = layers_.first; layer < layers_.end; ++layer) {
      const int64_t length = pool_.layer_length(input.sequence, layer);
      if (length == past) continue;
      refuse(name_of(input.sequence) + " has " + std::to_string(past) + " positions in layer " +
             std::to_string(layers_.first) + " and " + std::to_string(length) + " in layer " +
             std::to_string(layer) + "; expected layers that stand equal");
    }
  }
  const bool takes_rows = layers_.first > 0 || ops::takes_rows(graph_);
  const size_t wanted = takes_rows ? tokens * static_cast<size_t>(config_.hidden_size) : 0;
  if (residual.size() != wanted) {
    refuse("a step from layer " + std::to_string(layers_.first) + " got " +
           std::to_string(residual.size()) + " numbers of the residual stream; expected " +
           std::to_string(wanted) + (wanted == 0 ? "" : ", tokens times hidden size"));
  }
  if (layers_.first == 0) {
    check_step(inputs, pool_, options_, config_.vocab_size, layout_, row_sampler_);
    return;
  }
  StepFit fit = measure_step(inputs, pool_, options_);
  fit.blocks = 0;  // its positions have theirs
  require_fit(fit);
  for (const StepInput& input : inputs) {
    row_sampler_.check(input);
    check_continued(input, pool_, layers_);
  }
}

std::span<const StepOutput> StepRunner::step_layers(std::span<const StepInput> inputs,
                                                    LayerRange layers,
                                                    std::span<const float> residual) {
  for (const StepInput& input : inputs) {
    if (input.num_drafts == 0 && input.routes.empty()) continue;
    refuse("a step of some layers takes neither drafts nor forced routes");
  }
  leads_.clear();
  return run_layers(inputs, layers, residual);
}

void StepRunner::prepare_guesses(size_t pass_tokens) {
  const size_t record_bytes = layout_.pass_words(0, 1) * sizeof(int32_t);
  leads_.reserve(static_cast<size_t>(options_.max_step_tokens),
                 static_cast<size_t>(config_.hidden_size), record_bytes);
  guess_record_.resize(layout_.pass_words(pass_tokens, pass_tokens) * sizeof(int32_t));
}

bool StepRunner::takes_leads() const {
  if (taps_) return false;
  const bool is_joined = layout_.mode == AuditMode::kDeferred && runs_fused(options_);
  return !records() || (is_joined && !options_.attribution);
}

std::span<const StepOutput> StepRunner::guess_layers(std::span<const StepInput> inputs,
                                                     LayerRange layers,
                                                     std::span<const float> residual) {
  struct Unwatched {
    StepRunner& runner;
    AuditSink* const sink = std::exchange(runner.sink_, nullptr);
    const uint64_t passes = runner.passes_;
    explicit Unwatched(StepRunner& watched) : runner(watched) { pause(true); }
    ~Unwatched() {
      pause(false);
      runner.sink_ = sink;
      runner.passes_ = passes;
      runner.records_guess_ = false;
    }
    void pause(bool is_paused) const {
      if (runner.taps_) runner.taps_->is_paused = is_paused;
    }
  };
  records_guess_ = records() && takes_leads();
  const Unwatched unwatched(*this);
  const std::span<const StepOutput> outputs = run_layers(inputs, layers, residual);
  guessed_words_ = {};
  if (records_guess_) {
    const size_t before = layout_.pass_words(rows_.size(), 0) * sizeof(int32_t);
    const size_t count = layout_.pass_words(0, batch_.token_ids.size()) * sizeof(int32_t);
    guessed_words_ = std::span(guess_record_).subspan(before, count);
  }
  return outputs;
}

std::span<const StepOutput> StepRunner::run_layers(std::span<const StepInput> inputs,
                                                   LayerRange layers,
                                                   std::span<const float> residual) {
  struct Whole {  // what step() finds
    LayerRange& layers;
    int count;
    const float*& residual;
    ~Whole() {
      layers = {0, count};
      residual = nullptr;
    }
  } whole{layers_, graph_.num_layers, residual_};
  layers_ = {layers.first, layers.end < 0 ? graph_.num_layers : layers.end};
  check_layers(inputs, residual);
  begin_watch(inputs);
  residual_ = residual.data();
  for (const StepInput& input : inputs) pool_.hold_layers(input.sequence);
  try {
    run_to_rows(inputs, nullptr, ChoicePoint::kBehindPass);
    if (batch_.choice_point == ChoicePoint::kBehindHead) choose_behind_head();
    run_from_rows();
  } catch (...) {
    undo(inputs);
    throw;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t end = parts_[i].past + parts_[i].num_tokens;
    pool_.set_layer_length(inputs[i].sequence, layers_.first, layers_.end, end);
  }
  settle(inputs);
  return outputs_;
}

std::span<const float> StepRunner::residual_rows() const {
  if (pass_.residual == nullptr) return {};
  return {pass_.residual, batch_.token_ids.size() * static_cast<size_t>(config_.hidden_size)};
}

}  // namespace vitrine::engine
