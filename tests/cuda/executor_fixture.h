// SPDX-License-Identifier: Apache-2.0
// Whole steps of a model through the executor of the CUDA kernels, emulated or on a GPU, beside the
// CPU's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend_cuda/fused_model.h"
#include "engine/engine_options.h"
#include "engine/run/audit_layout.h"
#include "engine/run/device_executor.h"
#include "model/architecture.h"
#include "tests/engine/adapter_fixture.h"
#include "tests/support/float_bits.h"
#if defined(VITRINE_TESTS_ON_GPU)
#include "tests/cuda/gpu_runtime.h"
#else
#include "tests/cuda/emulator/emulated_runtime.h"
#endif

namespace vitrine::testing {

inline constexpr size_t kPlentyOfMemory = size_t{2} << 30;

/// A model's inputs to an executor, as the engine makes them.
struct ModelUnderTest {
  explicit ModelUnderTest(const std::string& path, EngineOptions given = {})
      : checkpoint(Checkpoint::open(path)),
        config(parse_model_config(checkpoint)),
        graph(model::find_architecture(config.model_type, checkpoint.config_name()).build(config)) {
    if (given.threads == 0) given.threads = 1;
    // Rotary angles go on as they began: a longer context is no other model.
    config.max_position_embeddings =
        std::max<int64_t>(config.max_position_embeddings, given.max_context);
    if (given.max_context == 0) given.max_context = 100;
    if (given.kv_codecs.empty()) given.kv_codecs = {"f32"};  // CUDA's default
    given.max_sequences = 4;
    given.max_step_tokens = 24;
    given.max_logit_rows = 20;
    options = engine::resolve_options(given, checkpoint, config, graph);
    if (!options.adapters.empty()) {
      adapters.emplace(options.adapters, options.lora, checkpoint, graph);
    }
    layout = engine::make_audit_layout(graph, options.audit_mode, options.audit_level,
                                       /*record_rows=*/true);
  }
  int64_t blocks_per_sequence() const { return (options.max_context + 63) / 64; }
  engine::ExecutorInputs inputs() const {
    return {checkpoint,
            config,
            graph,
            layout,
            options,
            blocks_per_sequence() * options.max_sequences,
            adapters ? &*adapters : nullptr};
  }

  Checkpoint checkpoint;
  ModelConfig config;
  ops::Graph graph;
  EngineOptions options;
  std::optional<model::LoraAdapters> adapters;
  AuditLayout layout;
};

/// The executor over the device, emulated but where the tests are on a GPU; `made` is set to what
/// it is made on.
inline std::unique_ptr<engine::Executor> make_on_device(const ModelUnderTest& model,
                                                        kernels::cuda::emulator::Traffic& traffic,
                                                        backend_cuda::FusedModel** made = nullptr,
                                                        size_t capacity = kPlentyOfMemory) {
  return engine::make_device_executor(model.inputs(), [&](const engine::DeviceModelInputs& inputs) {
    auto fused = std::make_unique<backend_cuda::FusedModel>(
        std::make_unique<kernels::cuda::emulator::TestRuntime>(capacity, traffic), inputs);
    if (made != nullptr) *made = fused.get();
    return fused;
  });
}

/// What one sequence brings to a step: all its tokens get logits, or none.
struct Part {
  int32_t sequence = 0;
  std::vector<int32_t> tokens;
  bool has_rows = true;
  const DeviceSamplerSteps* steps = nullptr;  // of its last row; null: the head's choice stands
  std::vector<std::vector<ForcedRoute>> routes = {};  // [tokens] or empty
  int32_t adapter = -1;
};

/// A pass's results, copied.
struct StepResult {
  size_t rows = 0, tokens = 0;
  std::vector<int32_t> words;  // ids, row records, token records
  std::vector<float> logits, hidden_states;
  std::vector<float> choice_facts;  // [rows, kChoiceFacts] where a part has steps

  std::vector<float> logits_of(size_t row) const {
    const size_t vocab = logits.size() / rows;
    return {logits.begin() + static_cast<ptrdiff_t>(row * vocab),
            logits.begin() + static_cast<ptrdiff_t>((row + 1) * vocab)};
  }
};

/// Feeds sequences to an executor, each in its own blocks, which are not side by side.
class StepDriver {
 public:
  StepDriver(const ModelUnderTest& model, engine::Executor& executor)
      : model_(model), executor_(executor) {
    const auto count = static_cast<size_t>(model.options.max_sequences);
    lengths_.resize(count);
    tables_.resize(count);
    for (size_t s = 0; s < count; ++s) {
      for (int64_t block = 0; block < model.blocks_per_sequence(); ++block) {
        tables_[s].push_back(static_cast<int32_t>(block * static_cast<int64_t>(count) +
                                                  static_cast<int64_t>(count - 1 - s)));
      }
    }
  }

  /// The sequence goes on as if it had so many tokens, whose keys and values nobody wrote.
  void skip(int32_t sequence, int64_t length) { lengths_[static_cast<size_t>(sequence)] = length; }

  /// What the sequences bring, behind what they have.
  engine::StepBatch batch_of(const std::vector<Part>& parts, AuditMode audit = AuditMode::kDeferred,
                             bool reads_logits = true) const {
    engine::StepBatch batch;
    batch.audit_mode = audit;
    batch.read_logits = batch.read_hidden_states = reads_logits;
    bool forces = false;
    for (const Part& part : parts) forces = forces || !part.routes.empty();
    for (const Part& part : parts) {
      const auto s = static_cast<size_t>(part.sequence);
      const auto count = static_cast<int32_t>(part.tokens.size());
      batch.spans.push_back(
          {static_cast<int32_t>(batch.token_ids.size()), count, lengths_[s], tables_[s].data()});
      batch.span_adapters.push_back(part.adapter);
      for (int32_t i = 0; i < count; ++i) {
        if (part.has_rows) {
          batch.row_tokens.push_back(static_cast<int32_t>(batch.token_ids.size()));
          batch.row_targets.push_back(i + 1 < count ? part.tokens[static_cast<size_t>(i) + 1] : -1);
        }
        if (forces) {
          batch.forced_routes.emplace_back();
          if (!part.routes.empty())
            batch.forced_routes.back() = part.routes[static_cast<size_t>(i)];
        }
        if (part.has_rows && part.steps != nullptr && i + 1 == count) {
          batch.row_steps.resize(batch.row_tokens.size());
          batch.row_steps.back() = part.steps;
        }
        batch.token_ids.push_back(part.tokens[static_cast<size_t>(i)]);
        batch.positions.push_back(static_cast<int32_t>(lengths_[s]) + i);
        batch.block_tables.push_back(tables_[s].data());
      }
    }
    if (!batch.row_steps.empty()) batch.row_steps.resize(batch.row_tokens.size());
    return batch;
  }

  /// `next`: parts that most likely follow, whose ids may name rows of these (StepBatch::next).
  StepResult step(const std::vector<Part>& parts, AuditMode audit = AuditMode::kDeferred,
                  bool reads_logits = true, const std::vector<Part>& next = {}) {
    engine::StepBatch batch = batch_of(parts, audit, reads_logits), following;
    for (const Part& part : parts) {
      lengths_[static_cast<size_t>(part.sequence)] += static_cast<int64_t>(part.tokens.size());
    }
    if (!next.empty()) {
      following = batch_of(next, audit, false);
      batch.next = &following;
    }
    StepResult result;
    result.rows = batch.row_tokens.size();
    result.tokens = batch.token_ids.size();
    result.words.resize(audit == AuditMode::kNone
                            ? result.rows
                            : model_.layout.pass_words(result.rows, result.tokens));
    engine::PassOutput output;
    output.words = reinterpret_cast<std::byte*>(result.words.data());
    executor_.run_to_choice(batch, output);
    executor_.run_from_choice(batch, output);
    if (output.choice_facts != nullptr) {
      result.choice_facts.assign(output.choice_facts,
                                 output.choice_facts + result.rows * engine::kChoiceFacts);
    }
    if (!reads_logits) return result;
    const size_t vocab = static_cast<size_t>(model_.config.vocab_size) * result.rows;
    const size_t hidden = static_cast<size_t>(model_.config.hidden_size) * result.rows;
    result.logits.assign(output.logits, output.logits + vocab);
    result.hidden_states.assign(output.hidden_states, output.hidden_states + hidden);
    return result;
  }

 private:
  const ModelUnderTest& model_;
  engine::Executor& executor_;
  std::vector<int64_t> lengths_;
  std::vector<std::vector<int32_t>> tables_;
};

inline ::testing::AssertionResult same_floats(const std::vector<float>& a,
                                              const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << testing_support::different_elements(i, a[i], b[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

inline float as_float(int32_t word) {
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

/// Ids and records: equal words, but for the two that are merged in double by another order
/// (kernels/cuda/head/head.h). What the engine writes into a record itself is left out.
inline void expect_same_words(const AuditLayout& layout, const StepResult& expected,
                              const StepResult& found) {
  ASSERT_EQ(expected.words.size(), found.words.size());
  for (size_t i = 0; i < expected.words.size(); ++i) {
    const size_t first_record = expected.rows;
    const size_t row_words = static_cast<size_t>(layout.row_words);
    int32_t field = -1;
    if (i >= first_record && i < first_record + expected.rows * row_words) {
      field = static_cast<int32_t>((i - first_record) % row_words);
    }
    if (field >= layout.sampler_candidates && field < layout.attribution) continue;
    if (field >= 0 && (field == layout.log_sum_exp || field == layout.entropy)) {
      const float a = as_float(expected.words[i]), b = as_float(found.words[i]);
      EXPECT_NEAR(a, b, 1e-6F * std::max(1.0F, std::abs(a))) << "word " << i;
      continue;
    }
    EXPECT_EQ(expected.words[i], found.words[i]) << "word " << i << ", field " << field;
  }
}

inline void expect_same(const AuditLayout& layout, const StepResult& expected,
                        const StepResult& found) {
  EXPECT_TRUE(same_floats(expected.logits, found.logits));
  EXPECT_TRUE(same_floats(expected.hidden_states, found.hidden_states));
  expect_same_words(layout, expected, found);
}

}  // namespace vitrine::testing
