// SPDX-License-Identifier: Apache-2.0
// Hidden states in the records: the stream that the layers really see, the same however a sequence
// came to be, and nothing else changed by keeping it.
#include <cmath>

#include "tests/engine/engine_fixture.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {
namespace {

EngineOptions options_of(KernelPath path, std::vector<int> layers, int threads = 1) {
  EngineOptions options = test_options(threads, 16);
  options.kernels = path;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  options.hidden_state_layers = std::move(layers);
  return options;
}

std::vector<int> all_layers(const std::string& folder) {
  const int count = static_cast<int>(read_model_facts(Checkpoint::open(folder)).num_layers);
  std::vector<int> layers;
  for (int layer = 0; layer <= count; ++layer) layers.push_back(layer);
  return layers;
}

/// By position: the values of every layer asked for, one behind the other.
using States = std::map<int64_t, std::vector<float>>;

void keep_states(const std::vector<TokenRecord>& records, SequenceId sequence, States& states) {
  for (const TokenRecord& record : records) {
    if (record.sequence != sequence) continue;
    std::vector<float>& values = states[record.position];
    values.clear();
    for (const HiddenStateRecord& state : record.hidden_states) {
      values.insert(values.end(), state.values.begin(), state.values.end());
    }
  }
}

/// `ids` in chunks (0: whole), `beside` another sequence.
States states_of(Engine& engine, std::span<const int32_t> ids, size_t chunk, bool beside = false) {
  VectorSink sink;
  engine.set_audit_sink(&sink);
  const std::vector<int32_t> other = prompt_ids(70, engine.summary().vocab_size, 9);
  const SequenceId ours = engine.create_sequence(), theirs = engine.create_sequence();
  size_t others_fed = 0;
  for (size_t fed = 0; fed < ids.size();) {
    const size_t count = std::min(chunk == 0 ? ids.size() : chunk, ids.size() - fed);
    std::vector<StepInput> inputs;
    if (beside) {
      inputs.push_back({theirs, std::span<const int32_t>(other).subspan(others_fed, 1 + fed % 2)});
      others_fed += 1 + fed % 2;
    }
    inputs.push_back({ours, ids.subspan(fed, count)});
    inputs.back().rows = StepInput::Rows::kNone;
    engine.step(inputs);
    fed += count;
  }
  engine.set_audit_sink(nullptr);
  engine.release(ours);
  engine.release(theirs);
  States states;
  keep_states(sink.take(), ours, states);
  return states;
}

class HiddenStates : public ::testing::TestWithParam<ModelVariant> {
 protected:
  HiddenStates() : folder_(GetParam()), layers_(all_layers(folder_.path())) {}
  VariantFolder folder_;
  std::vector<int> layers_;
};

TEST_P(HiddenStates, AreInvariant) {
  States expected;
  for (const int threads : {1, 2}) {
    auto engine = Engine::load(folder_.path(), options_of(KernelPath::kFused, layers_, threads));
    const std::vector<int32_t> ids = prompt_ids(45, engine->summary().vocab_size);
    const size_t width = layers_.size() * static_cast<size_t>(engine->summary().hidden_size);
    for (const size_t chunk : {0, 1, 7}) {
      for (const bool beside : {false, true}) {
        const States states = states_of(*engine, ids, chunk, beside);
        ASSERT_EQ(states.size(), ids.size());
        if (expected.empty()) expected = states;
        for (const auto& [position, values] : states) {
          ASSERT_EQ(values.size(), width);
          EXPECT_EQ(std::memcmp(values.data(), expected.at(position).data(), 4 * width), 0)
              << "position " << position << ", chunks of " << chunk << ", " << threads;
        }
      }
    }
  }
}

// A layer's recorded norm is that of the vector which enters it.
TEST_P(HiddenStates, HaveTheRecordedNorms) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    auto engine = Engine::load(folder_.path(), options_of(path, layers_));
    VectorSink sink;
    engine->set_audit_sink(&sink);
    const std::vector<int32_t> ids = prompt_ids(20, engine->summary().vocab_size);
    StepInput input{engine->create_sequence(), ids};
    engine->step({&input, 1});
    for (const TokenRecord& record : sink.take()) {
      ASSERT_EQ(record.hidden_states.size(), layers_.size());
      for (size_t i = 0; i < layers_.size(); ++i) {
        const HiddenStateRecord& state = record.hidden_states[i];
        EXPECT_EQ(state.layer, layers_[i]);
        ASSERT_EQ(state.values.size(), static_cast<size_t>(engine->summary().hidden_size));
        double square = 0;
        for (const float value : state.values) square += double{value} * double{value};
        EXPECT_GT(square, 0);
        if (i == record.layers.size()) continue;
        const double norm = double{record.layers[i].residual_norm};
        EXPECT_NEAR(std::sqrt(square), norm, 1e-5 * norm);
      }
    }
    engine->set_audit_sink(nullptr);
  }
}

TEST_P(HiddenStates, BothPathsAgree) {
  if (!GetParam().scheme.empty()) GTEST_SKIP() << "float weights only";
  auto fused = Engine::load(folder_.path(), options_of(KernelPath::kFused, layers_));
  auto reference = Engine::load(folder_.path(), options_of(KernelPath::kReference, layers_));
  const std::vector<int32_t> ids = prompt_ids(30, fused->summary().vocab_size, 3);
  const States a = states_of(*fused, ids, 0), b = states_of(*reference, ids, 9);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [position, values] : a) {
    const std::vector<float>& others = b.at(position);
    ASSERT_EQ(values.size(), others.size());
    float largest = 0;
    for (const float value : others) largest = std::max(largest, std::fabs(value));
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], others[i], 1e-4F * largest);
    }
  }
}

TEST_P(HiddenStates, NaiveTellsWhatDeferredTells) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    EngineOptions options = options_of(path, layers_);
    options.attribution = true;
    std::vector<std::vector<std::byte>> records[2];
    for (const bool is_naive : {false, true}) {
      options.audit_mode = is_naive ? AuditMode::kNaive : AuditMode::kDeferred;
      auto engine = Engine::load(folder_.path(), options);
      VectorSink sink;
      engine->set_audit_sink(&sink);
      const std::vector<int32_t> ids = prompt_ids(12, engine->summary().vocab_size);
      StepInput input{engine->create_sequence(), std::span<const int32_t>(ids).first(9)};
      input.rows = StepInput::Rows::kAll;
      engine->step({&input, 1});
      input.tokens = std::span<const int32_t>(ids).subspan(9);
      input.rows = StepInput::Rows::kNone;
      engine->step({&input, 1});
      records[is_naive ? 1 : 0] = sink.records();
      engine->set_audit_sink(nullptr);
    }
    EXPECT_TRUE(records[0] == records[1]) << "path " << static_cast<int>(path);
  }
}

TEST_P(HiddenStates, ChangeNoResult) {
  auto with = Engine::load(folder_.path(), options_of(KernelPath::kFused, layers_, 2));
  auto without = Engine::load(folder_.path(), options_of(KernelPath::kFused, {}, 2));
  const std::vector<int32_t> ids = prompt_ids(40, with->summary().vocab_size, 5);
  std::vector<TokenRecord> records[2];
  Rows rows[2];
  for (Engine* engine : {with.get(), without.get()}) {
    const size_t i = engine == with.get() ? 0 : 1;
    VectorSink sink;
    engine->set_audit_sink(&sink);
    rows[i] = score(*engine, ids, 7);
    records[i] = sink.take();
    engine->set_audit_sink(nullptr);
  }
  EXPECT_TRUE(same_bits(rows[0], rows[1], ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(records[0][i].hidden_states.size(), layers_.size());
    EXPECT_TRUE(records[1][i].hidden_states.empty());
    EXPECT_EQ(records[0][i].prediction.logits_digest, records[1][i].prediction.logits_digest);
    EXPECT_EQ(records[0][i].prediction.entropy, records[1][i].prediction.entropy);
  }
}

// One layer alone, named twice and out of order.
TEST_P(HiddenStates, OnlyTheLayersThatWereAskedFor) {
  auto all = Engine::load(folder_.path(), options_of(KernelPath::kFused, layers_));
  const int last = layers_.back();
  auto some = Engine::load(folder_.path(), options_of(KernelPath::kFused, {last, 1, last}));
  EXPECT_EQ(some->options().hidden_state_layers, (std::vector<int>{1, last}));
  const std::vector<int32_t> ids = prompt_ids(5, all->summary().vocab_size);
  const States wide = states_of(*all, ids, 0), narrow = states_of(*some, ids, 0);
  const auto hidden = static_cast<std::ptrdiff_t>(all->summary().hidden_size);
  for (const auto& [position, values] : narrow) {
    const std::vector<float>& from = wide.at(position);
    std::vector<float> expected(from.begin() + hidden, from.begin() + 2 * hidden);
    expected.insert(expected.end(), from.end() - hidden, from.end());
    EXPECT_EQ(values, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, HiddenStates,
                         ::testing::Values(ModelVariant{"qwen3_moe", "", 0},
                                           ModelVariant{"qwen3_moe_sparse2", "", 0},
                                           ModelVariant{"granitemoe", "", 0},
                                           ModelVariant{"qwen2_moe", "int8", 32},
                                           ModelVariant{"llama", "", 0}),
                         variant_name);

std::string error_of(EngineOptions options) {
  try {
    Engine::load(oracle_folder("llama"), options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(HiddenStateOptions, AreChecked) {
  EXPECT_EQ(error_of(options_of(KernelPath::kFused, {0, 4})),
            "engine option 'hidden_state_layers' is 4; expected layers from 0 to 3");
  EXPECT_EQ(error_of(options_of(KernelPath::kFused, {-1})),
            "engine option 'hidden_state_layers' is -1; expected layers from 0 to 3");
  EngineOptions options = options_of(KernelPath::kFused, {0});
  options.audit_level = AuditLevel::kStandard;
  EXPECT_EQ(
      error_of(options),
      "engine option 'hidden_state_layers' needs audit_level full; expected it, or no layers");
}

}  // namespace
}  // namespace vitrine::testing
