// SPDX-License-Identifier: Apache-2.0
// Tokens that are guessed ahead: whoever guesses, the answer, its log-probabilities and its records
// are those of an answer without.
#include "tests/engine/speculated_answer.h"
#include "vitrine/federation_engine.h"

namespace vitrine::testing {
namespace {

EngineOptions speculation_options(int context) {
  EngineOptions options = test_options(2, 16);
  options.max_context = context;
  options.max_step_tokens = 32;
  options.max_logit_rows = 16;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  return options;
}

AskedAnswer ask(const Stepper& stepper, const std::string& name, const SamplerOptions& sampler,
                int max_new_tokens) {
  AskedAnswer asked;
  asked.name = name;
  asked.prompt = prompt_ids(21, stepper.summary().vocab_size);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = max_new_tokens;
  asked.options.ignore_end_of_text = true;
  return asked;
}

TEST(Speculation, ChangesNothingWithAnySampler) {
  for (const std::string& folder :
       {oracle_folder("qwen3_moe"), oracle_folder("llama"), shipped_model()}) {
    SCOPED_TRACE(folder);
    const auto engine = Engine::load(folder, speculation_options(96));
    int64_t accepted = 0;
    for (const auto& [name, sampler] : all_samplers()) {
      AskedAnswer asked = ask(*engine, name, sampler, 60);  // over borders of blocks
      if (name == "drawn") asked.options.logprobs = 3;
      if (name == "mirostat") asked.options.prompt_logprobs = true;
      accepted += expect_same_however_guessed(*engine, asked);
    }
    EXPECT_GT(accepted, 6 * 100);
  }
}

TEST(Speculation, EndsWhereTheContextDoes) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), speculation_options(40));
  for (const auto& [name, sampler] : all_samplers()) {
    AskedAnswer asked = ask(*engine, name, sampler, 60);
    EXPECT_GT(expect_same_however_guessed(*engine, asked, {1, 2, 8, 31}), 0);
    EXPECT_EQ(make_answer(*engine, asked).result.reason, StopReason::kContextFull);
  }
}

TEST(Speculation, EndsAtTheLimitAndAtAnEndOfText) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), speculation_options(96));
  for (int count = 1; count < 12; ++count) {
    expect_same_however_guessed(*engine, ask(*engine, "limit", all_samplers()[0].second, count));
  }
  // Any token of the answer as one that ends it.
  AskedAnswer asked = ask(*engine, "end", all_samplers()[1].second, 40);
  const std::vector<int32_t> tokens = make_answer(*engine, asked).result.tokens;
  asked.options.ignore_end_of_text = false;
  for (const size_t index : {0U, 1U, 7U, 20U}) {
    asked.options.stop_token_ids = {tokens[index]};
    expect_same_however_guessed(*engine, asked);
    EXPECT_EQ(make_answer(*engine, asked).result.reason, StopReason::kEndOfText);
  }
}

TEST(Speculation, EndsWhereTheCallbackSays) {
  const auto engine = Engine::load(oracle_folder("llama"), speculation_options(96));
  for (int count = 1; count < 24; ++count) {
    AskedAnswer asked = ask(*engine, "stop", all_samplers()[1].second, 40);
    asked.stop_behind = count;
    asked.options.logprobs = 0;
    expect_same_however_guessed(*engine, asked, {8});
  }
}

TEST(Speculation, CountsWhatItDid) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), speculation_options(96));
  const AskedAnswer asked = ask(*engine, "counts", all_samplers()[0].second, 60);
  const ToldAnswer plain = make_answer(*engine, asked);
  EXPECT_EQ(plain.result.speculation.num_passes, 0);
  OracleDrafter right(plain.result.tokens, 1, engine->summary().vocab_size);
  const SpeculationCounts counts =
      make_answer(*engine, asked, {.drafter = &right, .max_drafts = 4}).result.speculation;
  // The prompt's pass chooses one, 11 passes five, the last one four.
  EXPECT_EQ(counts.drafter, "oracle");
  EXPECT_EQ(counts.num_passes, 13);
  EXPECT_EQ(counts.num_spec_steps, 12);
  EXPECT_EQ(counts.num_draft_tokens, 11 * 4 + 3);
  EXPECT_EQ(counts.num_accepted_draft_tokens, 11 * 4 + 3);
  EXPECT_EQ(counts.num_discarded_tokens, 0);
  EXPECT_EQ(counts.acceptance_histogram, (std::vector<int64_t>{0, 0, 0, 1, 11}));
  EXPECT_DOUBLE_EQ(counts.draft_acceptance_rate(), 1);
  EXPECT_DOUBLE_EQ(counts.mean_acceptance_length(), 1 + 47.0 / 12);
  OracleDrafter wrong(plain.result.tokens, 0, engine->summary().vocab_size);
  const SpeculationCounts none =
      make_answer(*engine, asked, {.drafter = &wrong, .max_drafts = 4}).result.speculation;
  EXPECT_EQ(none.num_spec_steps, 58);  // the last token's pass has no room for more
  EXPECT_EQ(none.num_passes, 60);
  EXPECT_EQ(none.num_discarded_tokens, none.num_draft_tokens);
  EXPECT_EQ(none.acceptance_histogram[0], 58);
  EXPECT_DOUBLE_EQ(none.mean_acceptance_length(), 1);
}

TEST(Speculation, GoesOnInASequenceThatHoldsSomething) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), speculation_options(96));
  AskedAnswer asked = ask(*engine, "", all_samplers()[3].second, 20);
  const auto answer_twice = [&](Drafter* drafter) {
    GenerateOptions options = asked.options;
    options.sequence = engine->create_sequence();
    options.speculation.drafter = drafter;
    const std::vector<int32_t> first = generate(*engine, asked.prompt, options).tokens;
    const std::vector<int32_t> more = {first.back(), 5, 6, 7};
    std::vector<int32_t> second = generate(*engine, more, options).tokens;
    engine->release(options.sequence);
    return std::pair(first, second);
  };
  const auto plain = answer_twice(nullptr);
  for (const char* name : {"ngram", "suffix"}) {
    const auto drafter = make_drafter(name);
    EXPECT_EQ(answer_twice(drafter.get()), plain);
  }
}

TEST(Speculation, OfSeveralAnswersAsksADrafterOnceAPass) {
  EngineOptions options = speculation_options(96);
  options.max_sequences = 3;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  const AskedAnswer asked = ask(*engine, "", all_samplers()[0].second, 30);
  const std::vector<int32_t> truth = make_answer(*engine, asked).result.tokens;
  OracleDrafter oracle(truth, 0.8, engine->summary().vocab_size);
  GenerateOptions generation = asked.options;
  generation.speculation = {.drafter = &oracle, .max_drafts = 4};
  std::vector<Generation> answers;
  answers.reserve(3);
  for (int i = 0; i < 3; ++i) answers.emplace_back(*engine, asked.prompt, generation);
  const int64_t passes = answer_together(*engine, answers, 8, 5);
  EXPECT_LT(passes, 30);
  EXPECT_LE(oracle.calls, passes);
  for (Generation& one : answers) EXPECT_EQ(one.take_result().tokens, truth);
}

TEST(Speculation, OfAFederationChangesNothing) {
  EngineOptions options = speculation_options(96);
  const auto federation = Federation::load(two_specialists(), options);
  for (const auto& [name, sampler] : all_samplers()) {
    EXPECT_GT(expect_same_however_guessed(*federation, ask(*federation, name, sampler, 40), {6}),
              0);
  }
}

}  // namespace
}  // namespace vitrine::testing
