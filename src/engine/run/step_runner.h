// SPDX-License-Identifier: Apache-2.0
// A loaded model and one step at a time of it: what an Engine owns, and a Federation drives.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_options.h"
#include "engine/occupant.h"
#include "engine/run/draft_trees.h"
#include "engine/run/engine_threads.h"
#include "engine/run/executor.h"
#include "engine/run/exit_leads.h"
#include "engine/run/features.h"
#include "engine/run/kv_budget.h"
#include "engine/run/layer_words.h"
#include "engine/run/next_step.h"
#include "engine/run/row_sampler.h"
#include "engine/run/state_journal.h"
#include "engine/run/step_clock.h"
#include "engine/run/step_rows.h"
#include "kv/block_pool.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// What an engine is loaded for.
struct LoadRequest {
  enum class Reading { kCheck, kDescribe, kLoad };
  Reading reading = Reading::kLoad;
  const DeviceJointSpec* joint = nullptr;  // what a device shall make of a step's rows
  bool record_rows = true;  // false: records say nothing of rows, which somebody else records
  int draft_layer = -1;     // of the model only this layer of those that draft, by step_layers

  bool is_draft_layer() const { return draft_layer >= 0; }
  bool is_load() const { return reading == Reading::kLoad; }
};

/// What the context is checked by: nobody runs what is only described.
inline ModelConfig limited_config(const LoadRequest& request, const EngineOptions& options,
                                  const ModelConfig& config) {
  return request.reading == LoadRequest::Reading::kDescribe ? described_config(config, options)
                                                            : config;
}

/// Not thread-safe.
class StepRunner final : private Meanwhile {
 public:
  StepRunner(const std::string& path, const EngineOptions& given, const LoadRequest& request);

  /// A whole step. `joint`: a joint of its rows is made and chosen on the device, and the outputs
  /// have no tokens and no logits; one of no rows: the step's rows stay where they are.
  std::span<const StepOutput> step(std::span<const StepInput> inputs,
                                   const DeviceJointStep* joint = nullptr);
  /// A step up to the rows of its head, where somebody else chooses their tokens; fused path only.
  /// The outputs have logits and hidden states (no logits where a joint of no rows leaves them on
  /// the device).
  std::span<const StepOutput> step_to_rows(std::span<const StepInput> inputs,
                                           const DeviceJointStep* joint = nullptr);
  /// The rest of it. [rows] each row's token and the runner-up, or -1 where the head's own stand.
  void step_from_rows(std::span<const int32_t> chosen, std::span<const int32_t> runners_up);

  /// The first `length` positions of a sequence stay; of those that its last step brought, the
  /// first `count`. A state that has taken in more is made again: of what the step's drafts brought
  /// to it, where that is kept.
  void truncate(SequenceId sequence, int64_t length);
  void keep(SequenceId sequence, int64_t count);
  /// Stepper::preempt().
  void preempt(SequenceId sequence);

  /// A step of some of the layers (Engine::step_layers).
  std::span<const StepOutput> step_layers(std::span<const StepInput> inputs, LayerRange layers,
                                          std::span<const float> residual);
  /// What left the last layer of it.
  std::span<const float> residual_rows() const;
  /// Throws kUnsupported where a part of the layers cannot run by itself.
  void require_layers() const;
  /// Before guess_layers() and leads(): room for passes of so many tokens.
  void prepare_guesses(size_t pass_tokens);
  /// The same as step_layers() for guesses, with drafts too: no recorder, tap or log is told of it.
  std::span<const StepOutput> guess_layers(std::span<const StepInput> inputs, LayerRange layers,
                                           std::span<const float> residual);
  /// [tokens, bytes of a token's record] what a recorder would have been told of the last one, of
  /// its layers; empty where none listens, or a lead needs no words.
  std::span<const std::byte> guessed_words() const { return guessed_words_; }
  /// The words that some of the layers write.
  LayerWords words_of(LayerRange layers) const { return {graph_, layout_, layers}; }
  /// Where the next step may go on. A step forgets them all.
  ExitLeads& leads() { return leads_; }
  /// Whether it would. Taps are to see every layer of it, and attribution needs them all at once.
  bool takes_leads() const;

  /// Engine::replace_matrix(): from a checkpoint, or from floats.
  template <typename Source>
  void replace_matrix(const std::string& module, const Source& source) {
    executor_->replace_matrix(module, source);
    leads_.clear();
  }

  const DeviceJointResult& joint_result() const { return pass_.joint; }  // until the next step
  const DeviceRows& rows_on_device() const { return pass_.rows_on_device; }

  void set_audit_sink(AuditSink* sink);
  void set_audit_mode(AuditMode mode);
  AuditSink* audit_sink() const { return sink_; }
  const AuditLayout& layout() const { return layout_; }
  const EngineOptions& options() const { return options_; }
  const ModelSummary& summary() const { return summary_; }
  /// Of a draft layer alone it is empty.
  const TensorUse& tensor_use() const { return tensor_use_; }
  kv::BlockPool& pool() { return pool_; }
  /// Null where nothing is tapped.
  ops::TapBook* taps() { return taps_ ? &*taps_ : nullptr; }
  void set_tap_reader(TapReader* reader) { features_.host = reader; }
  /// The sequence whose input the last step failed for that did; 0: it failed for all.
  SequenceId blamed() const { return blamed_; }
  /// Stepper::features().
  std::span<const float> features(SequenceId sequence) const;
  const ops::TapBook* taps() const { return taps_ ? &*taps_ : nullptr; }
  Executor& executor() { return *executor_; }
  const std::shared_ptr<EngineThreads>& threads() const { return threads_; }
  /// Whether drafts may be a tree.
  bool runs_trees() const { return executor_->runs_trees(); }
  /// Whether a sampler's stages may choose on the device.
  bool samples_on_device() const { return samples_on_device_; }
  /// That a sequence may name.
  int num_adapters() const { return static_cast<int>(options_.adapters.size()); }
  /// What it goes through that names `adapter`: -1 is the sum of EngineOptions::lora where there is
  /// one.
  int32_t loaded_adapter(int adapter) const {
    return adapter < 0 && !options_.lora.empty() ? num_adapters() : adapter;
  }

 private:
  bool records() const { return sink_ != nullptr && layout_.mode != AuditMode::kNone; }

  /// Before anything of a step has happened.
  void begin_watch(std::span<const StepInput> inputs) {
    watch_.begin();
    watch_.add(options_.cancelled);
    for (const StepInput& input : inputs) watch_.add(input.cancelled);
    watch_.check();
    batch_.watch = watch_.is_idle() ? nullptr : &watch_;
  }
  void check(std::span<const StepInput> inputs) const;
  void check_trees(std::span<const StepInput> inputs) const;
  void check_layers(std::span<const StepInput> inputs, std::span<const float> residual) const;
  std::span<const StepOutput> run_layers(std::span<const StepInput> inputs, LayerRange layers,
                                         std::span<const float> residual);
  bool is_whole() const { return layers_.first == 0 && layers_.end == graph_.num_layers; }
  /// The positions of a sequence that the step's first layer has.
  int64_t past_of(SequenceId sequence) const { return pool_.layer_length(sequence, layers_.first); }
  void replay_journal(SequenceId sequence);
  void catch_up(SequenceId sequence);
  void run_again(SequenceId sequence, int64_t begin, int64_t count);
  void prepare(std::span<const StepInput> inputs);
  void prepare_rows(std::span<const StepInput> inputs);
  void run_to_rows(std::span<const StepInput> inputs, const DeviceJointStep* joint,
                   ChoicePoint point);
  void run_meanwhile() noexcept override;
  void choose_behind_head();
  void run_from_rows();
  void undo(std::span<const StepInput> inputs);
  void settle(std::span<const StepInput> inputs);
  std::byte* reserve_record();
  StepOutput output_of(size_t row) const;
  void choose();
  void follow_tree(size_t row, int32_t chosen);
  void put_path(const StepRow& row);
  void put_path(const StepInput& input, int32_t first, int32_t token);
  void forget_paths();
  void settle_trees();
  void choose_row(size_t row, StepOutput& output);
  void record_row(size_t row, const StepOutput& output);
  void collect_without_tokens();
  /// The host chooses this row's token.
  bool is_host_sampled(size_t row) const;
  bool is_device_sampled(const StepRow& row) const;
  bool has_steps(size_t row) const {
    return row < batch_.row_steps.size() && batch_.row_steps[row] != nullptr;
  }
  void let_host_choose();
  void describe_choices();
  SampleContext context_of(const StepRow& row) const;
  int32_t sample(size_t row, const float* logits);
  const StepInput& input_of(const StepRow& row) const {
    return inputs_[static_cast<size_t>(row.input)];
  }

  Checkpoint checkpoint_;
  ModelConfig config_;
  ops::Graph graph_;
  EngineOptions options_;
  core::CancelWatch watch_;
  AuditLayout layout_;
  std::optional<model::LoraAdapters> adapters_;
  std::optional<ops::TapBook> taps_;
  FeatureRows features_;
  std::shared_ptr<EngineThreads> threads_;
  std::unique_ptr<Executor> executor_;
  KvBlocks kv_blocks_;
  kv::BlockPool pool_;
  ModelSummary summary_;
  TensorUse tensor_use_;
  AuditSink* sink_ = nullptr;
  uint64_t passes_ = 0;
  StepClock clock_;
  // Of the step under way:
  std::byte* record_ = nullptr;
  std::unique_ptr<std::byte[]> tree_record_;  // of a step with trees, before drafts are chosen
  std::span<const StepInput> inputs_;
  SequenceId blamed_ = 0;
  LayerRange layers_;
  const float* residual_ = nullptr;  // that a step of layers further up begins with
  int led_layer_ = 0;                // that a whole step goes on from; 0: it has no leads
  ExitLeads leads_;
  std::vector<std::byte> guess_record_;  // of a pass of guesses
  std::span<const std::byte> guessed_words_;
  bool records_guess_ = false;  // in that
  StepBatch batch_;
  struct InputPart {
    SequenceId sequence = 0;
    int64_t past = 0;  // positions before it
    int32_t first_token = 0, num_tokens = 0;
  };
  std::vector<InputPart> parts_;  // by input; none where it failed
  PassOutput pass_;
  StepRows rows_;
  StateJournal journal_;  // of the last pass
  std::exception_ptr meanwhile_error_;
  SequenceId meanwhile_blamed_ = 0;  // whose that is
  std::vector<StepOutput> outputs_;  // [rows]
  std::vector<int32_t> own_words_;   // chosen ids where nobody records
  RowSampler row_sampler_;
  NextStep next_step_;
  DraftTrees trees_;
  bool samples_on_device_ = false;                 // where the sampler's stages can
  std::vector<DeviceSamplerSteps> sampler_steps_;  // [rows]
};

/// How a federation and a drafter reach what their engines own.
struct EngineAccess {
  static Occupant& occupant(Engine& engine);
  static std::unique_ptr<Engine> load(const std::string& path, const EngineOptions& options,
                                      const LoadRequest& request);
  static StepRunner& runner(Engine& engine);
};

}  // namespace vitrine::engine
