// SPDX-License-Identifier: Apache-2.0
// Inputs of a step that fail alone: the others have the bits that they have without them, and the
// pass counts and is recorded once.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/edited_model.h"
#include "tests/engine/federation_fixture.h"
#include "vitrine/generate.h"

namespace vitrine::testing {
namespace {

constexpr int32_t kBroken = 77;  // the token whose embedding is NaN

/// A model in which one token makes no number.
EditedModel model_with_broken_token(const std::string& oracle) {
  return EditedModel(
      oracle,
      [](nlohmann::json& config) { EXPECT_FALSE(config.value("tie_word_embeddings", false)); },
      [](EditedModel::Tensors& tensors) {
        EditedModel::Tensor& table = tensors.at("model.embed_tokens.weight");
        const size_t width = table.bytes.size() / static_cast<size_t>(table.shape[0]);
        std::fill_n(table.bytes.begin() + static_cast<std::ptrdiff_t>(width * kBroken), width,
                    std::byte{0xff});
      });
}

/// Texts without the broken token.
std::vector<int32_t> whole_ids(int count, uint32_t seed) {
  std::vector<int32_t> ids = prompt_ids(count, 256, seed);
  std::ranges::replace(ids, kBroken, kBroken + 1);
  return ids;
}

struct Guide final : ChoiceGuide {
  std::span<const uint32_t> allowed_tokens(int64_t position, ConstraintDecision&) override {
    if (position == fails_at) throw std::runtime_error("the guide is lost");
    return {};
  }
  int64_t fails_at = -1;
};

struct ThrowingStage final : SamplerStage {
  std::string_view name() const override { return "thrower"; }
  uint32_t stage_id() const override { return kFirstHostStageId; }
  void apply(Candidates&, const SampleContext&) override {
    throw Error(ErrorKind::kInternal, "the stage is lost");
  }
};

class LoneFailures : public ::testing::TestWithParam<std::string> {
 protected:
  LoneFailures() : model_(model_with_broken_token(GetParam())) {
    EngineOptions options = test_options();
    options.audit_mode = AuditMode::kDeferred;
    engine_ = Engine::load(model_.path(), options);
    for (uint32_t i = 0; i < 4; ++i) {
      texts_.push_back(whole_ids(5 + static_cast<int>(i) * 7, i + 1));
      expected_.push_back(score(*engine_, texts_[i]));
    }
  }

  void begin() {
    inputs_.clear();
    for (const std::vector<int32_t>& text : texts_) {
      inputs_.push_back({engine_->create_sequence(), text});
    }
    engine_->set_audit_sink(&sink_);
  }
  /// Steps the inputs, of which these fail.
  void step(const std::vector<size_t>& failing) {
    const size_t passes = sink_.records().size();
    const std::span<const StepOutput> outputs = engine_->step(inputs_);
    ASSERT_EQ(outputs.size(), inputs_.size());
    ASSERT_EQ(engine_->failures().size(), failing.size());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      SCOPED_TRACE(i);
      const bool fails = std::ranges::find(failing, i) != failing.end();
      const auto length = static_cast<int64_t>(texts_[i].size());
      EXPECT_EQ(outputs[i].sequence, inputs_[i].sequence);
      EXPECT_EQ(outputs[i].position, length - 1);
      EXPECT_EQ(outputs[i].failed, fails);
      EXPECT_EQ(engine_->length(inputs_[i].sequence), fails ? 0 : length);
      if (fails) {
        EXPECT_EQ(outputs[i].token, -1);
        EXPECT_TRUE(outputs[i].scores.empty());
        continue;
      }
      Rows rows;
      keep_rows(outputs, inputs_[i].sequence, rows);
      EXPECT_TRUE(same_bits(expected_[i], rows, 1));
    }
    ASSERT_EQ(sink_.records().size(), passes + 1);
    AuditPassHeader header;
    std::memcpy(&header, sink_.records().back().data(), sizeof(header));
    EXPECT_EQ(header.pass, passes + texts_.size()) << "the pass counts once, behind the scores";
    EXPECT_EQ(header.num_rows, inputs_.size() - failing.size());
  }

  EditedModel model_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<Rows> expected_;
  std::vector<StepInput> inputs_;
  VectorSink sink_;
};

TEST_P(LoneFailures, LogitsThatAreNoNumbers) {
  texts_[1].back() = texts_[3].front() = kBroken;
  begin();
  step({1, 3});
  for (const StepFailure& failure : engine_->failures()) {
    EXPECT_EQ(failure.kind, ErrorKind::kBadFile) << failure.message;
    EXPECT_NE(failure.message.find("sequence " + std::to_string(failure.sequence)),
              std::string::npos)
        << failure.message;
    EXPECT_THROW(std::rethrow_exception(failure.error), Error);
  }
  // The next step forgets them.
  StepInput next{inputs_[0].sequence, std::span(texts_[2]).first(3)};
  engine_->step({&next, 1});
  EXPECT_TRUE(engine_->failures().empty());
}

TEST_P(LoneFailures, GuidesAndStagesThatThrow) {
  begin();
  Guide lost, fine;
  lost.fails_at = static_cast<int64_t>(texts_[2].size());
  SamplerPipeline pipeline;
  pipeline.add(std::make_unique<ThrowingStage>());
  inputs_[0].sampler = &pipeline;
  inputs_[1].guide = &fine;
  inputs_[2].guide = &lost;
  step({0, 2});
  for (const StepFailure& failure : engine_->failures()) {
    EXPECT_EQ(failure.kind, ErrorKind::kInternal);
    if (failure.sequence != inputs_[2].sequence) continue;
    EXPECT_EQ(failure.message, "the guide is lost");
    EXPECT_THROW(std::rethrow_exception(failure.error), std::runtime_error);
  }
}

TEST_P(LoneFailures, WhereAllFailTheStepDoes) {
  for (std::vector<int32_t>& text : texts_) text.back() = kBroken;
  begin();
  EXPECT_THROW(engine_->step(inputs_), Error);
  EXPECT_TRUE(engine_->failures().empty());
  EXPECT_THROW(engine_->step({inputs_.data(), 1}), Error);
  EXPECT_TRUE(sink_.records().empty());
  for (const StepInput& input : inputs_) EXPECT_EQ(engine_->length(input.sequence), 0);
  // What is wrong with the step is no input's alone.
  texts_[0].assign(3, 5);
  inputs_[0].tokens = texts_[0];
  inputs_[1].sequence = 999;
  EXPECT_THROW(engine_->step(inputs_), Error);
}

TEST_P(LoneFailures, AnswersGoOnBesideOneThatFails) {
  std::vector<std::vector<int32_t>> alone;
  GenerateOptions options;
  options.max_new_tokens = 9;
  options.ignore_end_of_text = true;
  options.sampler.temperature = 0.9F;
  options.sampler.ban = {{kBroken}};
  for (const std::vector<int32_t>& text : texts_) {
    alone.push_back(generate(*engine_, text, options).tokens);
    ASSERT_EQ(std::ranges::count(alone.back(), kBroken), 0);
  }
  texts_[2][3] = kBroken;
  std::vector<Generation> answers;
  for (const std::vector<int32_t>& text : texts_) {
    answers.emplace_back(*engine_, std::vector<int32_t>(text), options);  // it keeps its prompt
  }
  size_t failed = 0;
  while (std::ranges::any_of(answers, [](const Generation& one) { return !one.finished(); })) {
    std::vector<StepInput> inputs;
    std::vector<Generation*> open;
    for (Generation& one : answers) {
      if (one.finished()) continue;
      open.push_back(&one);
      inputs.push_back(one.next_input());
    }
    std::span<const StepOutput> outputs = engine_->step(inputs);
    for (size_t i = 0; i < open.size(); ++i) {
      const auto count = static_cast<size_t>(Stepper::row_count(inputs[i]));
      try {
        open[i]->accept(outputs.first(count));
      } catch (const Error& error) {
        EXPECT_EQ(open[i], &answers[2]);
        EXPECT_NE(std::string(error.what()).find("NaN"), std::string::npos) << error.what();
        ++failed;
      }
      outputs = outputs.subspan(count);
    }
  }
  EXPECT_EQ(failed, 1U);
  for (size_t i = 0; i < answers.size(); ++i) {
    const GenerateResult& result = answers[i].result();
    EXPECT_EQ(result.reason, i == 2 ? StopReason::kFailed : StopReason::kLength);
    if (i == 2) continue;
    EXPECT_EQ(result.tokens, alone[i]);
  }
  EXPECT_EQ(answers[2].result().reason, StopReason::kFailed);
}

INSTANTIATE_TEST_SUITE_P(Models, LoneFailures, ::testing::Values("qwen3_moe", "qwen3_next"),
                         [](const auto& info) { return info.param; });

TEST_F(FederationTest, AnInputFailsAlone) {
  const EditedModel broken = model_with_broken_token("qwen3_moe");
  separate_.specialists[0].model = broken.path();
  separate_.specialists[1] = {"other", oracle_folder("qwen3_moe"), ""};
  EngineOptions options = test_options();
  options.audit_mode = AuditMode::kDeferred;
  const auto federation = Federation::load(separate_, options);
  std::vector<std::vector<int32_t>> texts = {whole_ids(5, 1), whole_ids(9, 2), whole_ids(7, 3)};
  std::vector<Rows> expected(3);
  std::vector<std::vector<SpecialistShare>> shares;
  for (size_t i = 0; i < texts.size(); ++i) {
    const StepInput alone{federation->create_sequence(), texts[i]};
    keep_rows(federation->step({&alone, 1}), alone.sequence, expected[i]);
    const auto own = federation->shares(0);
    shares.emplace_back(own.begin(), own.end());
    federation->release(alone.sequence);
  }
  texts[1][4] = kBroken;
  VectorSink sink;
  federation->set_audit_sink(&sink);
  std::vector<StepInput> inputs;
  for (const auto& text : texts) inputs.push_back({federation->create_sequence(), text});
  const auto free_blocks = federation->kv_blocks().first;
  const std::span<const StepOutput> outputs = federation->step(inputs);
  ASSERT_EQ(federation->failures().size(), 1U);
  EXPECT_EQ(federation->failures()[0].sequence, inputs[1].sequence);
  ASSERT_EQ(outputs.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(outputs[i].failed, i == 1);
    EXPECT_EQ(federation->length(inputs[i].sequence),
              i == 1 ? 0 : static_cast<int64_t>(texts[i].size()));
    if (i == 1) {
      EXPECT_TRUE(federation->shares(i).empty());
      continue;
    }
    Rows rows;
    keep_rows(outputs, inputs[i].sequence, rows);
    EXPECT_TRUE(same_bits(expected[i], rows, 1));
    EXPECT_TRUE(std::ranges::equal(federation->shares(i), shares[i]));
  }
  ASSERT_EQ(sink.records().size(), 1U);
  EXPECT_EQ(federation->kv_blocks().first, free_blocks - 4);  // of two sequences, two specialists
  federation->set_audit_sink(nullptr);
}

TEST_F(FederationTest, ASinkThatRefusesLeavesEverythingAsItWas) {
  struct Refuser final : VectorSink {
    std::byte* reserve(size_t) override { throw Error(ErrorKind::kIo, "no room"); }
  } sink;
  EngineOptions options = test_options();
  options.audit_mode = AuditMode::kDeferred;
  const auto federation = Federation::load(separate_, options);
  const StepInput input{federation->create_sequence(), std::span(prompt_).first(9)};
  Rows expected, rows;
  keep_rows(federation->step({&input, 1}), input.sequence, expected);
  federation->truncate(input.sequence, 0);
  federation->set_audit_sink(&sink);
  EXPECT_THROW(federation->step({&input, 1}), Error);
  EXPECT_EQ(federation->length(input.sequence), 0);
  federation->set_audit_sink(nullptr);
  keep_rows(federation->step({&input, 1}), input.sequence, rows);
  EXPECT_TRUE(same_bits(expected, rows, 1));
}

}  // namespace
}  // namespace vitrine::testing
