// SPDX-License-Identifier: Apache-2.0
// Answers that are driven from outside: many through one step, with any limits, left and gone on
// with. Each is the one that generate() makes alone.
#include "tests/engine/constraint_fixture.h"
#include "tests/support/in_sequence.h"
#include "vitrine/quality.h"

namespace vitrine::testing {
namespace {

EngineOptions shared_options() {
  EngineOptions options = test_options(2);
  options.max_context = 96;
  options.max_step_tokens = 24;
  options.max_logit_rows = 20;
  options.max_sequences = 16;
  options.audit_mode = AuditMode::kDeferred;
  options.keep_logits = true;
  return options;
}

/// What an answer is asked for with, and what came of it.
struct Asked {
  std::vector<int32_t> prompt;
  GenerateOptions options;
  std::shared_ptr<Constraint> constraint;
  std::vector<int32_t> told = {};
};

void expect_equal(std::span<const TokenLogprobs> expected, std::span<const TokenLogprobs> found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i].token, found[i].token);
    EXPECT_EQ(expected[i].logprob, found[i].logprob);
    EXPECT_EQ(expected[i].best, found[i].best);
    EXPECT_EQ(expected[i].rank, found[i].rank);
  }
}

void expect_same(const GenerateResult& expected, const GenerateResult& found) {
  EXPECT_EQ(expected.tokens, found.tokens);
  EXPECT_EQ(expected.reason, found.reason);
  EXPECT_EQ(expected.prompt_tokens, found.prompt_tokens);
  EXPECT_EQ(expected.is_complete, found.is_complete);
  EXPECT_EQ(expected.constraint.masks, found.constraint.masks);
  EXPECT_EQ(expected.constraint.jumped, found.constraint.jumped);
  EXPECT_EQ(expected.constraint.retries, found.constraint.retries);
  EXPECT_EQ(expected.failures.size(), found.failures.size());
  expect_equal(expected.logprobs, found.logprobs);
  expect_equal(expected.prompt_logprobs, found.prompt_logprobs);
}

class GenerationTest : public ConstraintTest {
 protected:
  GenerationTest() : shared_(Engine::load(oracle_folder("qwen3_moe"), shared_options())) {}

  std::vector<Asked> many() const {
    std::vector<Asked> all;
    for (uint32_t i = 0; i < 12; ++i) {
      Asked asked;
      asked.prompt = prompt_ids(static_cast<int>(1 + 5 * (i % 7)), 256, i + 1);
      asked.options.max_new_tokens = static_cast<int>(3 + 4 * (i % 6));
      asked.options.sampler.temperature = i % 3 == 0 ? 0.0F : 0.9F;
      asked.options.sampler.seed = i;
      if (i % 4 == 1) asked.options.sampler.repetition_penalty = 1.2F;
      if (i % 5 == 2) asked.options.logprobs = 2;
      if (i % 6 == 3) asked.options.prompt_logprobs = true;
      if (i % 3 == 1) asked.options.prompt_scores = static_cast<int>(i % 4);
      if (i % 4 == 2 && asked.options.max_new_tokens >= 7) {
        const Grammar grammar = Grammar::regex(table(), "[a-f]{4,9}(xyz)+");
        asked.constraint = grammar.start();
        asked.options.validator_retries = 2;
        asked.options.validator = [](std::span<const int32_t> tokens) {
          return tokens.size() % 2 == 0;
        };
      }
      all.push_back(std::move(asked));
    }
    return all;
  }

  std::unique_ptr<Engine> shared_;
};

TEST_F(GenerationTest, ScoresAPromptAsScoreTokensDoes) {
  for (const int length : {1, 2, 33, 60}) {
    const std::vector<int32_t> prompt = prompt_ids(length, 256, 5);
    const TokenScores scores = score_tokens(*shared_, prompt);
    for (const int most : {0, 3}) {
      GenerateOptions options;
      options.prompt_scores = 2;
      options.max_new_tokens = most;
      size_t told = 0;
      const GenerateResult result =
          generate(*shared_, prompt, options, [&](const TokenEvent& event) {
            told = event.prompt_logprobs.size();
            return true;
          });
      ASSERT_EQ(result.prompt_logprobs.size(), prompt.size() - 1);
      EXPECT_EQ(told, most > 0 ? prompt.size() - 1 : 0);
      for (size_t i = 0; i + 1 < prompt.size(); ++i) {
        const TokenLogprobs& one = result.prompt_logprobs[i];
        EXPECT_EQ(one.token, prompt[i + 1]);
        EXPECT_EQ(one.logprob, scores.logprobs[i]);
        ASSERT_EQ(one.best.size(), 2u);
        EXPECT_EQ(one.rank == 1, one.logprob == one.best[0].second);
        EXPECT_EQ(one.rank > 2, one.logprob < one.best[1].second);
      }
    }
  }
}

TEST_F(GenerationTest, ManyShareSteps) {
  std::vector<Asked> alone = many(), together = many();
  std::vector<GenerateResult> expected;
  for (Asked& asked : alone) {
    asked.options.constraint = asked.constraint.get();
    expected.push_back(
        generate(*shared_, asked.prompt, asked.options, [&](const TokenEvent& event) {
          asked.told.push_back(event.token);
          return true;
        }));
  }
  const auto blocks = shared_->kv_blocks();
  std::vector<std::unique_ptr<Generation>> running;
  for (Asked& asked : together) {
    asked.options.constraint = asked.constraint.get();
    running.push_back(std::make_unique<Generation>(*shared_, asked.prompt, asked.options,
                                                   [&asked](const TokenEvent& event) {
                                                     asked.told.push_back(event.token);
                                                     return true;
                                                   }));
  }
  // Each step begins with another one, and some are left alone now and then.
  for (size_t turn = 0;; ++turn) {
    std::vector<StepInput> inputs;
    std::vector<size_t> who;
    int64_t tokens = shared_options().max_step_tokens, rows = shared_options().max_logit_rows;
    for (size_t i = 0; i < running.size(); ++i) {
      const size_t index = (i + turn) % running.size();
      if (running[index]->finished() || (index + turn) % 5 == 4 || tokens < 1 || rows < 1) continue;
      const int64_t most = 1 + static_cast<int64_t>((index + turn) % 7);
      inputs.push_back(running[index]->next_input(std::min(most, tokens), std::min(most, rows)));
      who.push_back(index);
      const auto count = static_cast<int64_t>(inputs.back().tokens.size());
      tokens -= count;
      rows -= inputs.back().rows == StepInput::Rows::kAll    ? count
              : inputs.back().rows == StepInput::Rows::kLast ? 1
                                                             : 0;
    }
    if (inputs.empty() && turn > 2000) FAIL() << "nobody goes on";
    if (inputs.empty()) {
      if (std::ranges::all_of(running, [](const auto& one) { return one->finished(); })) break;
      continue;
    }
    std::span<const StepOutput> outputs = shared_->step(inputs);
    for (const size_t index : who) {
      const SequenceId sequence = running[index]->sequence();
      const auto end = std::ranges::find_if(
          outputs, [&](const StepOutput& output) { return output.sequence != sequence; });
      const auto count = static_cast<size_t>(end - outputs.begin());
      running[index]->accept(outputs.first(count));
      outputs = outputs.subspan(count);
    }
    EXPECT_TRUE(outputs.empty());
  }
  for (size_t i = 0; i < running.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(expected[i], running[i]->take_result());
    EXPECT_EQ(together[i].told, alone[i].told);
  }
  running.clear();
  EXPECT_EQ(shared_->kv_blocks(), blocks);
}

// The loop of docs/embedding.md, to the letter: prompts of more tokens than a step has.
TEST_F(GenerationTest, EqualSharesOfAStepServeLongPrompts) {
  Engine& model = *shared_;
  GenerateOptions options;
  options.max_new_tokens = 5;
  options.ignore_end_of_text = true;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> expected;
  for (uint32_t i = 0; i < 8; ++i) {
    prompts.push_back(prompt_ids(31 + static_cast<int>(i), 256, i + 1));
    expected.push_back(generate(model, prompts.back(), options).tokens);
  }
  std::vector<vitrine::Generation> running;
  for (const std::vector<int32_t>& prompt : prompts) running.emplace_back(model, prompt, options);

  const auto count = static_cast<int64_t>(running.size());
  const int64_t most_tokens = model.options().max_step_tokens / count;
  const int64_t most_rows = model.options().max_logit_rows / count;
  for (;;) {
    std::vector<vitrine::StepInput> inputs;
    std::vector<vitrine::Generation*> asked;
    for (vitrine::Generation& one : running) {
      if (one.finished()) continue;
      inputs.push_back(one.next_input(most_tokens, most_rows));
      asked.push_back(&one);
    }
    if (inputs.empty()) break;
    std::span<const vitrine::StepOutput> outputs = model.step(inputs);
    for (vitrine::Generation* one : asked) {
      size_t rows = 0;
      while (rows < outputs.size() && outputs[rows].sequence == one->sequence()) ++rows;
      one->accept(outputs.first(rows));
      outputs = outputs.subspan(rows);
    }
  }

  for (size_t i = 0; i < running.size(); ++i) {
    EXPECT_EQ(running[i].result().tokens, expected[i]) << i;
  }
}

TEST_F(GenerationTest, CanBeCancelledBetweenSteps) {
  GenerateOptions options;
  options.max_new_tokens = 20;
  options.sampler.temperature = 0;
  options.ignore_end_of_text = true;
  const GenerateResult whole = generate(*shared_, ids_, options);
  Generation generation(*shared_, ids_, options);
  for (int i = 0; i < 5; ++i) {
    StepInput input = generation.next_input();
    input = generation.next_input();  // asked again, it says the same
    generation.accept(shared_->step({&input, 1}));
  }
  generation.cancel();
  EXPECT_TRUE(generation.finished());
  const GenerateResult result = generation.take_result();
  EXPECT_EQ(result.reason, StopReason::kCancelled);
  ASSERT_EQ(result.tokens.size(), 5U);
  EXPECT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), whole.tokens.begin()));
}

TEST_F(GenerationTest, RefusesWhatIsNotItsOwn) {
  GenerateOptions options;
  options.max_new_tokens = 2;
  Generation generation(*shared_, ids_, options);
  StepInput input = generation.next_input();
  const std::span<const StepOutput> outputs = shared_->step({&input, 1});
  const Error error = error_of([&] { generation.accept({}); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"0 outputs", "expected 1"})) << error.what();
  generation.accept(outputs);
  input = generation.next_input();
  generation.accept(shared_->step({&input, 1}));
  EXPECT_TRUE(generation.finished());
  EXPECT_TRUE(is_one_line_with(error_of([&] { generation.next_input(); }), {"finished()"}));
}

TEST_F(GenerationTest, ACallbackThatThrowsEndsIt) {
  const auto blocks = shared_->kv_blocks();
  {
    GenerateOptions options;
    options.max_new_tokens = 9;
    Generation generation(*shared_, ids_, options,
                          [](const TokenEvent&) -> bool { throw std::runtime_error("no"); });
    StepInput input = generation.next_input();
    const std::span<const StepOutput> outputs = shared_->step({&input, 1});
    EXPECT_THROW(generation.accept(outputs), std::runtime_error);
    EXPECT_TRUE(generation.finished());
  }
  EXPECT_EQ(shared_->kv_blocks(), blocks);
}

}  // namespace
}  // namespace vitrine::testing
