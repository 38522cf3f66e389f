// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a federation holds.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cancel_watch.h"
#include "engine/engine_access.h"
#include "engine/federate/federation_audit.h"
#include "engine/generate/step_thread_lender.h"
#include "engine/occupant.h"
#include "engine/run/device_model.h"
#include "engine/run/lone_failures.h"
#include "engine/run/row_sampler.h"
#include "engine/run/step_clock.h"
#include "engine/run/step_runner.h"
#include "federation/block_combiner.h"
#include "ops/plan.h"
#include "vitrine/federation_engine.h"

namespace vitrine {

using engine::FederationSource;
using engine::RecordTap;

struct Federation::Impl {
  struct Member {
    std::vector<SequenceId> sequences;  // [sources]
    std::vector<int32_t> history;
    int64_t length = 0;      // after the last step that was finished
    int64_t step_begin = 0;  // before that step
  };
  struct Prefix {
    std::vector<PrefixId> parts;  // [sources]
    std::vector<int32_t> history;
  };
  struct RowAccount {
    const float* joint = nullptr;  // the joint's row, where the host chose by it
    float logprob = 0;             // of the chosen token in that row
    JointScore score;
    double residual = 0;
  };

  Impl(const FederationSpec& given, const EngineOptions& asked, std::unique_ptr<Combiner> own);
  // Loads one engine for adapters of one base, else one for each specialist. A base that a gate
  // reads and that is no specialist is a further source.
  void load_engines(bool has_own_combiner);
  // Sets device_joint where the specialists' device can make the joint and choose by it.
  void plan_device_joint(bool has_own_combiner);
  // Throws where the log cannot keep the hidden states of every source.
  void check_hidden_states(std::span<const AuditLayout* const> layouts) const;
  void describe();

  std::vector<std::string> specialist_names() const {
    std::vector<std::string> names;
    for (const SpecialistSpec& specialist : spec.specialists) names.push_back(specialist.name);
    return names;
  }

  Member& find(SequenceId sequence) {
    const auto found = sequences.find(sequence);
    if (found != sequences.end()) return found->second;
    throw Error(ErrorKind::kInvalidArgument, "sequence " + std::to_string(sequence) +
                                                 " is not there; expected one that "
                                                 "create_sequence gave and that was not released");
  }
  const Prefix& find_prefix(PrefixId prefix) const;
  // Returns the federation's sequence that an engine's sequence is part of; 0: there is none.
  SequenceId member_of(size_t engine, SequenceId part) const;
  // Returns a source's part of an input, but for routes.
  StepInput part_of(const StepInput& input, const Member& member, size_t source) const;
  // Does an engine's work in a step; where that throws, notes in `blamed` whose input it was.
  template <typename Work>
  decltype(auto) in_engine(size_t engine, Work&& work) {
    try {
      return work();
    } catch (...) {
      blamed = member_of(engine, runner(engine).blamed());
      throw;
    }
  }
  // Releases the sequences that a member has so far.
  void release_all(const Member& member);
  Engine& engine_of(size_t source) { return *engines[sources[source].engine]; }
  engine::StepRunner& runner(size_t engine) {
    return engine::EngineAccess::runner(*engines[engine]);
  }
  const StepInput& input_of(size_t row) const {
    return step_inputs[static_cast<size_t>(rows[row].input)];
  }
  SampleContext context_of(size_t row) {
    const StepInput& input = input_of(row);
    const engine::StepRow& of = rows[row];
    return {input.seed, of.position + 1, input.branch,
            std::span(find(input.sequence).history).first(static_cast<size_t>(of.position) + 1)};
  }
  bool records() const { return sink != nullptr && layout.mode != AuditMode::kNone; }

  void prepare();
  std::span<const ForcedRoute> own_routes(std::span<const ForcedRoute> all, int32_t first_layer,
                                          int32_t layers);
  void run();
  // Runs the step with the joint on the device. Returns false, and nothing has happened, where the
  // host has to choose.
  bool run_on_device();
  bool describe_joint();
  void describe_next_joint();
  void step_on_device();
  void take_device_row(size_t row);
  void undo();
  void collect();
  // Returns true where attribution is recorded. Every pass then stops behind its head until the
  // joint's tokens are known, or makes the joint itself (step_on_device).
  bool attributes() const { return !layout.terms.empty() && records(); }
  void tell_choices();
  class RowWork;
  void reserve_rows(size_t rows);
  void make_joint(size_t row);
  void check_hosts_joint() const;
  [[noreturn]] static void refuse_joint(const StepOutput& output);
  void combine_row(size_t row);
  void choose_rows();
  StepOutput output_of(size_t row) const;
  void record();
  void record_terms(size_t row, std::byte* words);
  // Returns a specialist's logits of the chosen token and of the runner-up, where the device made
  // the joint.
  std::array<float, 2> device_logits(size_t row, size_t specialist) const;

  static constexpr size_t kNone = static_cast<size_t>(-1);
  core::CancelWatch watch;  // of the step under way
  engine::Occupant occupant{"a federation"};
  const kernels::CpuKernels& kernel;
  engine::WorkerPool* workers = nullptr;  // the first engine's
  FederationSpec spec;
  std::unique_ptr<Combiner> combiner;
  BlockCombiner* block_combiner = nullptr;  // `combiner`, where it is a BlockCombiner
  EngineOptions options;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<FederationSource> sources;  // the specialists; the base, where only the gate reads it
  size_t base = kNone;                    // the source whose hidden state the gate reads
  AuditLayout layout;
  ModelSummary summary;
  AuditSink* sink = nullptr;
  engine::StepClock clock;
  std::vector<RecordTap> taps;  // [engines]
  uint64_t passes = 0;

  std::map<SequenceId, Member> sequences;
  std::map<PrefixId, Prefix> prefixes;
  SequenceId next_sequence = 1;  // or prefix
  std::optional<engine::StepThreadLender> lender;
  engine::LoneFailures lone_failures;
  SequenceId blamed = 0;  // whose input the step under way failed for; 0: it failed for all
  std::span<const StepInput> step_inputs;                   // of the step under way
  engine::StepRows rows;                                    // the step's rows, one for each token
  std::vector<std::vector<StepInput>> inputs;               // [engines]
  std::vector<ForcedRoute> routes;                          // those of the inputs
  std::vector<std::span<const StepOutput>> engine_outputs;  // [engines]
  std::vector<float> joint;                                 // [rows, vocabulary]
  std::vector<float> exponentials;  // [specialists, vocabulary] of one row; empty: not kept
  std::vector<float> block_max;     // [specialists, blocks] of one row
  std::vector<RowExponentials> row_exponentials;  // [specialists] views of these; empty: not kept
  std::vector<ExponentialSum> sums;
  std::vector<kernels::HeadBlockStats> block_stats;  // [blocks]
  std::vector<kernels::HeadStats> stats;             // [rows]
  std::vector<SpecialistRow> parts;                  // [rows, specialists]
  std::vector<std::span<const float>> hidden;        // [rows]
  std::vector<SpecialistShare> shares;               // [rows, specialists]
  std::vector<RowAccount> accounts;                  // [rows]
  std::vector<StepOutput> outputs;                   // [rows]
  std::optional<engine::RowSampler> row_sampler;
  std::vector<size_t> next_output;  // [engines]
  std::vector<size_t> part_rows;    // [rows, specialists] which row of its engine that is
  struct Choices {
    std::vector<int32_t> chosen, runners_up;  // [rows of the engine] -1: nobody asks
    void reserve(size_t rows) {
      chosen.reserve(rows);
      runners_up.reserve(rows);
    }
  };
  std::vector<Choices> choices;  // [engines]
  std::optional<engine::DeviceJointSpec> device_joint;
  // For several engines; null: the only engine makes the joint itself.
  std::unique_ptr<engine::DeviceJoint> joint_model;
  engine::DeviceJointStep joint_step, next_joint, rows_stay;
  std::vector<const float*> joint_sources;  // [row_width] for several engines
  engine::DeviceJointResult joint_result;
  bool is_joint_on_device = false;  // joint_result is the last step's
  // [rows] where the device chooses, in this step and in the next
  std::vector<DeviceSamplerSteps> sampler_steps, next_sampler_steps;
};

}  // namespace vitrine
