// SPDX-License-Identifier: Apache-2.0
// Federations in the room `engine`: several specialists stepped together as one model.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vitrine/engine.h"
#include "vitrine/federation.h"

namespace vitrine {

/// Specialists that answer together: several checkpoints with one tokenizer, or one base with
/// low-rank adapters, whose weights are then read once for all of them. It is used where an Engine
/// is, by one thread at a time; a sequence of it is one sequence of each specialist.
///
///     FederationSpec spec = FederationSpec::load("federation.json");
///     auto federation = Federation::load(spec, {});
///     GenerateResult result = generate(*federation, prompt_ids, {});
///
/// What it records is one account of each token: its layers are the specialists', one after the
/// other (the base's last, where a gate reads it and it is no specialist), its prediction is the
/// joint's, and PredictionRecord::federation has every specialist's part.
class VITRINE_API Federation final : public Stepper {
 public:
  /// `options` hold for the federation: max_sequences are its own sequences, and max_step_tokens
  /// and max_logit_rows count each of its tokens once; where one engine runs all specialists, they
  /// are lowered to what it takes of so many (options() has what holds). hidden_state_layers are
  /// recorded for each specialist, under the numbers that its layers have in the log; what leaves
  /// the last layer of the i-th specialist has the number of all layers plus i. Where specialists
  /// have different depths, each records those of the layers that it has. With attribution each
  /// specialist's own logit is recorded as a sum; on the reference path that is kUnsupported.
  /// `combiner`: a host's own in place of the file's. Throws what Engine::load throws;
  /// kInvalidArgument for specialists whose vocabularies differ.
  static std::unique_ptr<Federation> load(const FederationSpec& spec, const EngineOptions& options,
                                          std::unique_ptr<Combiner> combiner = nullptr);
  ~Federation() override;

  /// Returns sums over the specialists' memory; the path is the federation file's.
  const ModelSummary& summary() const override;
  /// Returns the options, with what holds for the federation.
  const EngineOptions& options() const override;
  /// Returns what it was loaded from.
  const FederationSpec& spec() const;
  /// Returns what makes the joint.
  const Combiner& combiner() const;
  /// Returns the engines that run the specialists: one for adapters of one base, else one each.
  std::vector<const Engine*> engines() const;

  using Stepper::create_sequence;
  /// Makes a sequence of every specialist. `adapter`: -1, since each goes through its own.
  SequenceId create_sequence(int adapter) override;
  SequenceId fork(SequenceId sequence) override;
  void truncate(SequenceId sequence, int64_t length) override;
  void release(SequenceId sequence) override;
  int64_t length(SequenceId sequence) const override;
  std::span<const int32_t> tokens(SequenceId sequence) const override;
  using Stepper::attach;
  void keep(SequenceId sequence, int64_t count) override;
  /// Keeps those positions of every specialist.
  PrefixId retain(SequenceId sequence, int64_t length) override;
  SequenceId attach(PrefixId prefix, int64_t length) override;
  KvPrefix prefix(PrefixId prefix) const override;
  int64_t resumed_length(PrefixId prefix, int64_t length) const override;
  void release_prefix(PrefixId prefix) override;
  void preempt(SequenceId sequence) override;
  std::pair<int64_t, int64_t> kv_blocks() const override;
  /// Returns the federation's tokens and rows, the blocks of the engine that has the least left,
  /// and the tokens that all specialists together have to compute again.
  StepFit fits(std::span<const StepInput> inputs) const override;
  StepperTraits traits() const override;
  ThreadLender* thread_lender() override;

  /// Does what Engine::step does. The scores of a step's outputs are the joint's
  /// log-probabilities, for every row, and the base's hidden state where the combiner reads it; on
  /// CUDA's fused path, which makes the joint of the file's combiners on the device, only where
  /// EngineOptions::keep_logits and keep_hidden_state ask for them. A mask narrows the joint: what
  /// is recorded of a token is its probability before the mask. Forced routes name layers by their
  /// numbers in the log, so each specialist has its own.
  std::span<const StepOutput> step(std::span<const StepInput> inputs) override;
  std::span<const StepFailure> failures() const override;
  std::span<const SpecialistShare> shares(size_t output) const override;

  void set_audit_sink(AuditSink* sink) override;
  AuditSink* audit_sink() const override;
  const AuditLayout& audit_layout() const override;
  void set_audit_mode(AuditMode mode) override;

 private:
  struct Impl;
  explicit Federation(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vitrine
