// SPDX-License-Identifier: Apache-2.0
// Steps of some layers: a token that goes through the depth in parts, early or late, has the bits
// of one that goes through at once; what does not fit together is refused.
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

std::vector<float> residual_of(const Engine& engine) {
  const std::span<const float> rows = engine.residual_rows();
  return {rows.begin(), rows.end()};
}

class StepLayers : public ::testing::TestWithParam<ModelVariant> {
 protected:
  StepLayers() : folder_(GetParam()) {}

  void load(KernelPath path, const std::string& codec, int threads = 2) {
    EngineOptions options = test_options(threads);
    options.kernels = path;
    options.kv_codecs = {codec};
    engine_ = Engine::load(folder_.path(), options);
    ids_ = prompt_ids(21, engine_->summary().vocab_size);
    layers_ = engine_->summary().num_layers;
    expected_ = score(*engine_, ids_);
  }

  /// The tokens [begin, end) through layers [first, last); keeps rows of logits.
  std::vector<float> run(SequenceId sequence, size_t begin, size_t end, int first, int last,
                         std::span<const float> residual, Rows* rows = nullptr) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span<const int32_t>(ids_).subspan(begin, end - begin);
    input.rows = rows != nullptr ? StepInput::Rows::kAll : StepInput::Rows::kNone;
    const auto outputs = engine_->step_layers({&input, 1}, {first, last}, residual);
    if (rows != nullptr) keep_rows(outputs, sequence, *rows);
    return residual_of(*engine_);
  }

  VariantFolder folder_;
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  int layers_ = 0;
  Rows expected_;
};

TEST_P(StepLayers, InPartsHaveTheBitsOfAWholeStep) {
  for (const char* codec : {"f32", "i16"}) {
    load(KernelPath::kFused, codec);
    for (int cut = 1; cut < layers_; ++cut) {
      SCOPED_TRACE(::testing::Message() << codec << ", cut before layer " << cut);
      const SequenceId sequence = engine_->create_sequence();
      Rows rows;
      const std::vector<float> below = run(sequence, 0, 7, 0, cut, {});
      EXPECT_EQ(below.size(), 7u * static_cast<size_t>(engine_->summary().hidden_size));
      EXPECT_TRUE(run(sequence, 0, 7, cut, -1, below, &rows).empty());
      // Four tokens one by one below, as a draft; then together above, as its check.
      std::vector<float> drafts;
      for (size_t i = 7; i < 11; ++i) {
        const std::vector<float> one = run(sequence, i, i + 1, 0, cut, {});
        drafts.insert(drafts.end(), one.begin(), one.end());
      }
      EXPECT_EQ(engine_->length(sequence), 11);
      const SequenceId fork = engine_->fork(sequence);
      run(sequence, 7, 11, cut, layers_, drafts, &rows);
      feed(*engine_, sequence, ids_, 11, ids_.size(), 3, rows);
      EXPECT_TRUE(same_bits(expected_, rows, ids_.size()));
      // A fork lags as its source did, and half of its draft is taken back.
      engine_->truncate(fork, 9);
      Rows forked;
      const size_t half = drafts.size() / 2;
      run(fork, 7, 9, cut, -1, std::span(drafts).first(half), &forked);
      feed(*engine_, fork, ids_, 9, ids_.size(), 0, forked);
      EXPECT_TRUE(same_bits(expected_, forked, ids_.size() - 7));
      // Cut to what all layers have, it is whole.
      run(fork, 0, 0 + 1, 0, cut, {});
      EXPECT_EQ(engine_->length(fork), static_cast<int64_t>(ids_.size()) + 1);
      engine_->truncate(fork, 11);
      forked.clear();
      feed(*engine_, fork, ids_, 11, ids_.size(), 0, forked);
      EXPECT_TRUE(same_bits(expected_, forked, ids_.size() - 11));
      engine_->release(fork);
      engine_->release(sequence);
    }
  }
}

TEST_P(StepLayers, OfSeveralSequencesAndThreeParts) {
  load(KernelPath::kFused, "f32", 1);
  if (layers_ < 3) GTEST_SKIP() << "a model of two layers has no three parts";
  const SequenceId sequences[] = {engine_->create_sequence(), engine_->create_sequence()};
  const std::span<const int32_t> ids(ids_);
  std::vector<float> residual;
  Rows rows[2];
  for (const LayerRange part : {LayerRange{0, 1}, LayerRange{1, 2}, LayerRange{2, -1}}) {
    std::vector<StepInput> inputs = {{sequences[0], ids.first(5)}, {sequences[1], ids.first(9)}};
    for (StepInput& input : inputs) {
      input.rows = part.end < 0 ? StepInput::Rows::kAll : StepInput::Rows::kNone;
    }
    const auto outputs = engine_->step_layers(inputs, part, residual);
    for (size_t i = 0; i < 2; ++i) keep_rows(outputs, sequences[i], rows[i]);
    residual = residual_of(*engine_);
  }
  EXPECT_TRUE(same_bits(expected_, rows[0], 5));
  EXPECT_TRUE(same_bits(expected_, rows[1], 9));
}

// As a calibration runs a model whose layers do not fit into memory together.
TEST_P(StepLayers, AreForgottenOnceTheNextOneHasPassed) {
  for (const char* codec : {"f32", "i16"}) {
    load(KernelPath::kFused, codec);
    const SequenceId sequence = engine_->create_sequence();
    const SequenceId other = engine_->create_sequence();
    Rows rows;
    std::vector<float> below;
    for (int layer = 0; layer < layers_; ++layer) {
      const bool is_last = layer + 1 == layers_;
      const SequenceId looking = engine_->fork(sequence);
      run(looking, 0, 13, layer, layer + 1, below);
      engine_->release(looking);
      below = run(sequence, 0, 13, layer, layer + 1, below, is_last ? &rows : nullptr);
      if (layer > 0) engine_->forget_layer(layer - 1);
    }
    EXPECT_TRUE(same_bits(expected_, rows, 13));
    const StepInput next{sequence, std::span<const int32_t>(ids_).subspan(13, 1)};
    const std::string refused = error_of([&] { engine_->step({&next, 1}); }).what();
    EXPECT_NE(refused.find("has 13 tokens, and layer 0 has seen 0"), std::string::npos) << refused;
    // One without tokens has nothing to forget, and one that is truncated to none is as new.
    for (const SequenceId each : {other, sequence}) {
      engine_->truncate(each, 0);
      Rows again;
      feed(*engine_, each, ids_, 0, ids_.size(), 5, again);
      EXPECT_TRUE(same_bits(expected_, again, ids_.size()));
    }
  }
}

// The head of what leaves a layer in the middle: both paths say the same.
TEST_P(StepLayers, ExitEarly) {
  Rows exits[2];
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    load(path, "f32");
    const SequenceId sequence = engine_->create_sequence();
    Rows& rows = exits[path == KernelPath::kReference];
    const std::vector<float> below = run(sequence, 0, 6, 0, 1, {}, &rows);
    EXPECT_EQ(rows.size(), 6u);
    EXPECT_NE(rows[5], expected_[5]);
    Rows all;
    run(sequence, 0, 6, 1, -1, below, &all);
    ASSERT_EQ(all.size(), 6u);
    for (const auto& [position, row] : all) {
      for (size_t id = 0; id < row.size(); ++id) {
        ASSERT_NEAR(row[id], expected_[position][id], 1e-3);
      }
    }
  }
  for (const auto& [position, row] : exits[0]) {
    for (size_t id = 0; id < row.size(); ++id) ASSERT_NEAR(row[id], exits[1][position][id], 2e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StepLayers,
                         ::testing::Values(ModelVariant{"olmoe", ""}, ModelVariant{"llama", ""},
                                           ModelVariant{"qwen2_moe", ""},
                                           ModelVariant{"qwen3_moe", "int4"},
                                           ModelVariant{"flex_olmo", "int8"},
                                           ModelVariant{"shipped", ""}),
                         variant_name);

class StepLayersErrors : public ::testing::Test {
 protected:
  StepLayersErrors()
      : engine_(Engine::load(oracle_folder("olmoe"), test_options())),
        sequence_(engine_->create_sequence()),
        width_(static_cast<size_t>(engine_->summary().hidden_size)),
        residual_(9 * width_) {}

  std::string refusal(std::vector<int32_t> ids, LayerRange layers, size_t residual_tokens,
                      SequenceId sequence = 0) {
    StepInput input{sequence == 0 ? sequence_ : sequence, ids};
    input.rows = StepInput::Rows::kNone;
    try {
      engine_->step_layers({&input, 1}, layers,
                           std::span(residual_).first(residual_tokens * width_));
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
      return error.what();
    }
    return "nothing";
  }

  std::unique_ptr<Engine> engine_;
  SequenceId sequence_;
  size_t width_;
  std::vector<float> residual_;
};

TEST_F(StepLayersErrors, SayWhatStandsWhere) {
  EXPECT_NE(refusal({1}, {1, 1}, 0).find("expected some of 0 to"), std::string::npos);
  EXPECT_NE(refusal({1}, {0, 99}, 0).find("expected some of 0 to"), std::string::npos);
  EXPECT_NE(refusal({1}, {1, -1}, 1).find("the layer below has seen 0"), std::string::npos);
  EXPECT_NE(refusal({1}, {0, 1}, 1).find("expected 0"), std::string::npos);
  ASSERT_EQ(refusal({4, 5, 6}, {0, 1}, 0), "nothing");
  EXPECT_NE(refusal({4, 5}, {1, -1}, 1).find("tokens times hidden size"), std::string::npos);
  EXPECT_NE(refusal({4, 9}, {1, -1}, 2).find("has token 5 at position 1"), std::string::npos);
  EXPECT_NE(refusal({4, 5, 6, 7}, {1, -1}, 4).find("has seen 3 that it has not"),
            std::string::npos);
  EXPECT_NE(refusal({7}, {0, -1}, 0).find("expected layers that stand equal"), std::string::npos);
  const std::vector<int32_t> ids = {7};
  const StepInput input{sequence_, ids};
  try {
    engine_->step({&input, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 ("sequence " + std::to_string(sequence_) +
                  " has 3 tokens, and layer 1 has seen 0 of them; run the others through the "
                  "layers from there on (step_layers), or truncate it")
                     .c_str());
  }
  EXPECT_THROW(engine_->retain(sequence_, 1), Error);
  EXPECT_EQ(engine_->length(sequence_), 3);
}

TEST_F(StepLayersErrors, WhatCannotBeForgottenStays) {
  const auto refused = [this](int layer) {
    return std::string(error_of([&] { engine_->forget_layer(layer); }).what());
  };
  EXPECT_NE(refused(-1).find("expected 0 to"), std::string::npos);
  EXPECT_NE(refused(99).find("expected 0 to"), std::string::npos);
  ASSERT_EQ(refusal({4, 5, 6}, {0, -1}, 0), "nothing");
  const PrefixId prefix = engine_->retain(sequence_, 3);
  EXPECT_NE(refused(0).find("stand in 1 prefixes"), std::string::npos);
  // All that was there still is.
  const std::vector<int32_t> ids = {4, 5, 6, 7};
  const Rows expected = score(*engine_, ids);
  for (const SequenceId each : {sequence_, engine_->attach(prefix, 3)}) {
    Rows rows;
    feed(*engine_, each, ids, 3, 4, 0, rows);
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows.at(3), expected.at(3));
  }
  engine_->release_prefix(prefix);
  engine_->forget_layer(1);
  EXPECT_NE(refusal({8}, {0, -1}, 0).find("expected layers that stand equal"), std::string::npos);
}

TEST_F(StepLayersErrors, NothingIsRecordedInParts) {
  EngineOptions options = test_options();
  options.audit_mode = AuditMode::kDeferred;
  engine_ = Engine::load(oracle_folder("olmoe"), options);
  sequence_ = engine_->create_sequence();
  VectorSink sink;
  engine_->set_audit_sink(&sink);
  EXPECT_NE(refusal({4}, {0, 1}, 0).find("no pass that could be recorded"), std::string::npos);
  EXPECT_EQ(refusal({4}, {0, -1}, 0), "nothing");
  EXPECT_EQ(sink.records().size(), 1u);
  engine_->set_audit_mode(AuditMode::kNone);
  EXPECT_EQ(refusal({4}, {0, 1}, 0), "nothing");
}

// A tree of drafts: its branches are forks, in one step. Whichever is taken, what follows has the
// bits of a plain sequence.
TEST(DraftTrees, BranchesAreForks) {
  for (const char* codec : {"f32", "i16"}) {
    EngineOptions options = test_options(2);
    options.kv_codecs = {codec};
    auto engine = Engine::load(shipped_model(), options);
    for (const size_t past : {30, 63, 64, 66}) {
      std::vector<int32_t> ids = prompt_ids(static_cast<int>(past) + 8, 4096);
      const Rows expected = score(*engine, ids);
      const auto blocks = engine->kv_blocks();
      Rows rows;
      const SequenceId trunk = engine->create_sequence();
      feed(*engine, trunk, ids, 0, past, 0, rows);
      std::vector<SequenceId> branches = {engine->fork(trunk), trunk, engine->fork(trunk)};
      std::vector<std::vector<int32_t>> drafts;
      std::vector<StepInput> inputs;
      for (size_t i = 0; i < branches.size(); ++i) {
        drafts.emplace_back(ids.begin() + static_cast<ptrdiff_t>(past), ids.end());
        if (i != 2) drafts[i][i + 1] = (drafts[i][i + 1] + 1) % 4096;  // the last one is right
      }
      for (size_t i = 0; i < branches.size(); ++i) {
        inputs.push_back({branches[i], drafts[i]});
        inputs.back().rows = StepInput::Rows::kAll;
      }
      keep_rows(engine->step(inputs), branches[2], rows);
      EXPECT_TRUE(same_bits(expected, rows, ids.size()));
      for (const SequenceId branch : branches) engine->release(branch);
      EXPECT_EQ(engine->kv_blocks(), blocks);
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
