// SPDX-License-Identifier: Apache-2.0
// Drafts in a step: whatever is guessed, what is chosen has the bits of one step a token.
#include <deque>
#include <random>

#include "tests/engine/engine_fixture.h"
#include "vitrine/federation_engine.h"

namespace vitrine::testing {
namespace {

constexpr int32_t kPrompt = 21, kAnswer = 60;

/// Answers of one sequence: ids, their rows, and what the last record of each position says.
struct Answer {
  std::vector<int32_t> tokens;
  Rows rows;
  std::map<int64_t, TokenRecord> records;
};

SamplerOptions sampler_options(const std::string& kind) {
  SamplerOptions options;
  options.seed = 11;
  options.temperature = kind == "greedy" ? 0.0F : 0.9F;
  if (kind == "penalties") {
    options.repetition_penalty = 1.3F;
    options.dry_multiplier = 0.8F;
    options.penalty_window = 17;
  }
  if (kind == "mirostat") options.mirostat = 2;
  return options;
}

/// Allows a third of the ids, another third at each position.
class ThirdGuide final : public ChoiceGuide {
 public:
  explicit ThirdGuide(int32_t vocab) : vocab_(vocab) {}
  std::span<const uint32_t> allowed_tokens(int64_t position,
                                           ConstraintDecision& decision) override {
    EXPECT_EQ(position, expected_) << "asked in order, and of no row that does not count";
    decision.mask_microseconds = static_cast<float>(position);
    std::vector<uint32_t>& mask = masks_.emplace_back(static_cast<size_t>(vocab_ + 31) / 32);
    for (int32_t id = 0; id < vocab_; ++id) {
      if ((id + position) % 3 == 0) mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
    }
    return mask;
  }
  void chosen(int64_t position, int32_t token) override {
    EXPECT_EQ(position, expected_++);
    EXPECT_EQ((token + position) % 3, 0);
  }
  void begin_at(int64_t position) {
    expected_ = position;
    masks_.clear();
  }

 private:
  std::deque<std::vector<uint32_t>> masks_;  // of the step under way
  int32_t vocab_;
  int64_t expected_ = 0;
};

/// Guesses up to `most` tokens, each right with `probability`; `truth`: the answer.
std::vector<int32_t> guess(const std::vector<int32_t>& truth, size_t from, size_t most,
                           double probability, int32_t vocab, std::mt19937& random) {
  std::vector<int32_t> drafts;
  for (size_t i = from; i < truth.size() && drafts.size() < most; ++i) {
    const bool is_right = std::uniform_real_distribution<>()(random) < probability;
    drafts.push_back(is_right ? truth[i] : (truth[i] + 1) % vocab);
  }
  return drafts;
}

/// `truth` empty: one step a token.
Answer run(Stepper& stepper, const std::string& kind, bool is_guided,
           const std::vector<int32_t>& truth, size_t most, double probability) {
  std::mt19937 random(static_cast<uint32_t>(most) + static_cast<uint32_t>(probability * 1000));
  const int32_t vocab = stepper.summary().vocab_size;
  SamplerPipeline sampler = SamplerPipeline::from_options(sampler_options(kind));
  if (is_guided && kind == "greedy") {
    sampler = SamplerPipeline();
    sampler.add(make_constraint_stage());
    sampler.add(make_greedy_stage());
  }
  ThirdGuide guide(vocab);
  VectorSink sink;
  stepper.set_audit_sink(&sink);
  const std::vector<int32_t> prompt = prompt_ids(kPrompt, vocab);
  StepInput input;
  input.sequence = stepper.create_sequence();
  input.sampler = &sampler;
  input.seed = 11;
  input.guide = is_guided ? &guide : nullptr;
  std::vector<int32_t> tokens = prompt;
  Answer answer;
  while (static_cast<int32_t>(answer.tokens.size()) < kAnswer) {
    const std::vector<int32_t> drafts =
        guess(truth, answer.tokens.size(), most, probability, vocab, random);
    tokens.insert(tokens.end(), drafts.begin(), drafts.end());
    input.tokens = tokens;
    input.num_drafts = static_cast<int32_t>(drafts.size());
    const int64_t known =
        stepper.length(input.sequence) + static_cast<int64_t>(tokens.size() - drafts.size());
    guide.begin_at(known);
    const std::span<const StepOutput> outputs = stepper.step({&input, 1});
    EXPECT_EQ(outputs.size(), drafts.size() + 1);
    size_t kept = 0;
    bool counts = true;
    for (const StepOutput& output : outputs) {
      EXPECT_EQ(output.position, known - 1 + (&output - outputs.data()));
      EXPECT_EQ(output.token >= 0, counts);
      if (!counts) continue;
      const size_t index = answer.tokens.size();
      if (static_cast<int32_t>(index) < kAnswer) {
        answer.tokens.push_back(output.token);
        answer.rows[output.position].assign(output.scores.begin(), output.scores.end());
      }
      const size_t i = static_cast<size_t>(&output - outputs.data());
      counts = i < drafts.size() && output.token == drafts[i];
      if (counts) ++kept;
    }
    const int64_t length = known + static_cast<int64_t>(kept);
    for (TokenRecord& record : sink.take()) {
      if (record.position < length) answer.records[record.position] = std::move(record);
    }
    stepper.truncate(input.sequence, length);
    tokens.assign(1, outputs[kept].token);
  }
  stepper.set_audit_sink(nullptr);
  stepper.release(input.sequence);
  return answer;
}

void expect_same(const Answer& expected, const Answer& found) {
  EXPECT_EQ(expected.tokens, found.tokens);
  EXPECT_TRUE(same_bits(expected.rows, found.rows, expected.rows.size()));
  for (const auto& [position, record] : expected.records) {
    const auto other = found.records.find(position);
    if (position + 1 >= kPrompt + kAnswer) continue;  // how far the last step went
    ASSERT_NE(other, found.records.end()) << position;
    EXPECT_EQ(record.token, other->second.token);
    EXPECT_EQ(record.has_prediction, other->second.has_prediction) << position;
    const PredictionRecord &a = record.prediction, &b = other->second.prediction;
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.logprob, b.logprob);
    EXPECT_EQ(a.entropy, b.entropy);
    EXPECT_EQ(a.sampled.candidates, b.sampled.candidates);
    EXPECT_EQ(a.sampled.probability, b.sampled.probability);
    EXPECT_EQ(a.constraint.allowed, b.constraint.allowed);
    EXPECT_EQ(a.constraint.removed, b.constraint.removed);
    for (size_t layer = 0; layer < record.layers.size(); ++layer) {
      EXPECT_EQ(record.layers[layer].residual_norm, other->second.layers[layer].residual_norm);
    }
  }
}

void check_drafts(Stepper& stepper, const std::string& kind, bool is_guided) {
  const Answer plain = run(stepper, kind, is_guided, {}, 0, 0);
  for (const size_t most : {1, 3, 7}) {
    for (const double probability : {0.0, 0.5, 0.9, 1.0}) {
      SCOPED_TRACE(kind + " " + std::to_string(most) + " " + std::to_string(probability));
      expect_same(plain, run(stepper, kind, is_guided, plain.tokens, most, probability));
    }
  }
}

TEST(Drafts, ChooseWhatOneStepATokenChooses) {
  for (const std::string& name : {oracle_folder("qwen3_moe"), oracle_folder("llama")}) {
    for (const char* kv : {"f32", "i16"}) {
      EngineOptions options = test_options(2, 16);
      options.audit_mode = AuditMode::kDeferred;
      options.audit_level = AuditLevel::kFull;
      options.kv_codecs = {kv};
      const auto engine = Engine::load(name, options);
      for (const char* kind : {"greedy", "draw", "penalties", "mirostat"}) {
        for (const bool is_guided : {false, true}) check_drafts(*engine, kind, is_guided);
      }
    }
  }
}

TEST(Drafts, WithAttributionAreChosenInTheMiddleOfThePass) {
  EngineOptions options = test_options(2);
  options.audit_mode = AuditMode::kDeferred;
  options.attribution = true;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  for (const char* kind : {"greedy", "penalties"}) check_drafts(*engine, kind, true);
}

TEST(Drafts, StandBesideInputsWithout) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), test_options());
  const std::vector<int32_t> ids = prompt_ids(9, engine->summary().vocab_size);
  StepInput inputs[3];
  std::vector<std::vector<int32_t>> texts(3, ids);
  const auto answer_alone = [&](size_t count) {
    StepInput input;
    input.sequence = engine->create_sequence();
    std::vector<int32_t> tokens;
    std::vector<int32_t> now = ids;
    for (size_t i = 0; i < count; ++i) {
      input.tokens = now;
      now = {engine->step({&input, 1}).back().token};
      tokens.push_back(now[0]);
    }
    engine->release(input.sequence);
    return tokens;
  };
  const std::vector<int32_t> truth = answer_alone(4);
  for (StepInput& input : inputs) input.sequence = engine->create_sequence();
  texts[1].insert(texts[1].end(), truth.begin(), truth.begin() + 3);
  texts[2].insert(texts[2].end(), {truth[0], truth[1] ^ 1, truth[2]});
  for (size_t i = 0; i < 3; ++i) inputs[i].tokens = texts[i];
  inputs[1].num_drafts = inputs[2].num_drafts = 3;
  inputs[1].rows = StepInput::Rows::kAll;
  const std::span<const StepOutput> outputs = engine->step(inputs);
  ASSERT_EQ(outputs.size(), 1 + 12 + 4);
  EXPECT_EQ(outputs[0].token, truth[0]);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(outputs[1 + i].token, ids[i + 1]) << "scored";
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(outputs[9 + i].token, truth[i]);
  EXPECT_EQ(outputs[13].token, truth[0]);
  EXPECT_EQ(outputs[14].token, truth[1]);
  EXPECT_EQ(outputs[15].token, -1);
  EXPECT_EQ(outputs[16].token, -1);
}

TEST(Drafts, AreRefusedWhereTheyCannotBeChecked) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), test_options());
  const std::vector<int32_t> ids = prompt_ids(5, engine->summary().vocab_size);
  const std::vector<uint32_t> mask(static_cast<size_t>(engine->summary().vocab_size + 31) / 32,
                                   ~0U);
  ThirdGuide guide(engine->summary().vocab_size);
  StepInput good;
  good.sequence = engine->create_sequence();
  good.tokens = ids;
  good.num_drafts = 2;
  const auto refused = [&](const StepInput& input) {
    const Error error = error_of([&] { engine->step({&input, 1}); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {"expected"})) << error.what();
    EXPECT_EQ(engine->length(good.sequence), 0);
  };
  for (const int32_t count : {-1, 5, 6}) {
    StepInput bad = good;
    bad.num_drafts = count;
    refused(bad);
  }
  StepInput bad = good;
  bad.rows = StepInput::Rows::kNone;
  refused(bad);
  bad = good;
  bad.next_token = 1;
  refused(bad);
  bad = good;
  bad.num_forced = 1;
  refused(bad);
  bad = good;
  bad.allowed_tokens = mask;
  refused(bad);
  bad = good;
  bad.num_drafts = 0;
  bad.allowed_tokens = mask;
  bad.guide = &guide;
  refused(bad);
  EXPECT_EQ(engine->step({&good, 1}).size(), 3U);
}

/// Throws at its second question.
class ThrowingGuide final : public ChoiceGuide {
 public:
  std::span<const uint32_t> allowed_tokens(int64_t, ConstraintDecision&) override {
    if (++calls_ > 1) throw std::runtime_error("no mask");
    return {};
  }

 private:
  int calls_ = 0;
};

TEST(Drafts, AGuideThatThrowsLeavesTheSequenceAsItWas) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), test_options());
  const std::vector<int32_t> ids = prompt_ids(5, engine->summary().vocab_size);
  StepInput input;
  input.sequence = engine->create_sequence();
  input.tokens = ids;
  const int32_t first = engine->step({&input, 1}).back().token;
  engine->truncate(input.sequence, 0);
  std::vector<int32_t> drafted = ids;
  drafted.push_back(first);
  ThrowingGuide guide;
  input.tokens = drafted;
  input.num_drafts = 1;
  input.guide = &guide;
  EXPECT_THROW(engine->step({&input, 1}), std::runtime_error);
  EXPECT_EQ(engine->length(input.sequence), 0);
  input.guide = nullptr;
  EXPECT_EQ(engine->step({&input, 1})[0].token, first);
}

}  // namespace
}  // namespace vitrine::testing
