// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an engine holds.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/model_checks.h"
#include "engine/next_step.h"
#include "engine/occupant.h"
#include "engine/row_sampler.h"
#include "engine/step_clock.h"
#include "kv/block_pool.h"
#include "vitrine/engine.h"

namespace vitrine {

struct Engine::Impl {
  enum class Reading { kCheck, kDescribe, kLoad };

  Impl(const std::string& path, const EngineOptions& given, Reading reading,
       const engine::DeviceJointSpec* joint = nullptr);

  bool records() const { return sink != nullptr && layout.mode != AuditMode::kNone; }

  void check(std::span<const StepInput> inputs) const {
    engine::check_step(inputs, pool, options, config.vocab_size, layout, row_sampler);
  }
  void prepare(std::span<const StepInput> inputs);
  void begin(std::span<const StepInput> inputs, const engine::DeviceJointStep* joint, bool stops);
  void choose_in_pass();
  void finish();
  void undo(std::span<const StepInput> inputs);
  std::byte* reserve_record();
  StepOutput output_of(size_t row) const;
  void choose(std::span<const StepInput> inputs);
  void collect_without_tokens();
  /// The input whose next token this row chooses, or null.
  const StepInput* choosing_input(size_t row) const;
  /// The same where the host chooses it.
  const StepInput* host_sampled(size_t row) const;
  bool is_device_sampled(const StepInput& input, bool chooses) const;
  bool has_steps(size_t row) const;
  void require_choice_in_pass();
  void describe_choices();
  SampleContext context_of(const StepInput& input, size_t row) const;
  int32_t sample(const StepInput& input, size_t row, const float* logits);

  engine::Occupant occupant{"an engine"};
  Checkpoint checkpoint;
  ModelConfig config;
  ops::Graph graph;
  EngineOptions options;
  AuditLayout layout;
  std::optional<model::LoraAdapters> adapters;
  std::unique_ptr<engine::Executor> executor;
  kv::BlockPool pool;
  ModelSummary summary;
  AuditSink* sink = nullptr;
  uint64_t passes = 0;
  engine::StepClock clock;
  std::byte* record = nullptr;             // of the step under way
  std::span<const StepInput> step_inputs;  // of the step under way
  engine::StepBatch batch;
  engine::PassOutput pass;               // of the step under way
  bool chooses_in_pass = false;          // it needs the host's choices before it ends
  std::vector<AuditToken> audit_tokens;  // [tokens]
  static constexpr int32_t kForced = -2;
  std::vector<int32_t> row_inputs;  // [rows] input that the row's choice belongs to, kForced
                                    // minus the one that brings what was forced, or -1
  std::vector<StepOutput> outputs;  // [rows]
  std::vector<int32_t> own_words;   // chosen ids where nobody records
  engine::RowSampler row_sampler;
  engine::NextStep next_step;
  bool samples_on_device = false;                 // where the sampler's stages can
  std::vector<DeviceSamplerSteps> sampler_steps;  // [rows]
};

}  // namespace vitrine
