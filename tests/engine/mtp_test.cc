// SPDX-License-Identifier: Apache-2.0
// The layer that a checkpoint brings for drafts guesses, and the answer stays the same.
#include "vitrine/drafters.h"

#include <nlohmann/json.hpp>

#include "tests/engine/cancelled_drafter.h"
#include "tests/engine/model_fixture.h"
#include "tests/engine/mtp_folder.h"

namespace vitrine::testing {
namespace {

std::unique_ptr<Engine> load(const std::string& path, int sequences = 1) {
  EngineOptions options;
  options.threads = 2;
  options.max_context = 200;
  options.max_sequences = sequences;
  options.max_logit_rows = 16;
  options.max_step_tokens = 24;
  options.keep_logits = true;
  options.feature_layers = {static_cast<int>(read_model_facts(Checkpoint::open(path)).num_layers)};
  return Engine::load(path, options);
}

AskedAnswer ask(const SamplerOptions& sampler) {
  AskedAnswer asked;
  for (int32_t i = 0; i < 83; ++i) asked.prompt.push_back((41 * i * i + 7 * i + 3) % 250 + 2);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = 60;
  asked.options.ignore_end_of_text = true;
  asked.options.logprobs = 1;
  return asked;
}

// The answer again, guessed by the drafter. Returns what the guesses came to.
SpeculationCounts expect_same_with(Drafter& drafter, Engine& engine, const AskedAnswer& asked,
                                   const ToldAnswer& plain, int32_t drafts) {
  const ToldAnswer found = make_answer(engine, asked, {.drafter = &drafter, .max_drafts = drafts});
  expect_same_answer(plain, found);
  EXPECT_EQ(found.result.speculation.problem, "");
  EXPECT_GT(found.result.speculation.num_draft_tokens, 20);
  return found.result.speculation;
}

TEST(Mtp, AnswersAreThoseWithout) {
  for (const MtpModel& model : mtp_models()) {
    for (const bool is_simple : {false, true}) {
      SCOPED_TRACE(model.oracle + (is_simple ? ", simple" : ""));
      const MtpFolder folder(model, is_simple);
      const auto engine = load(folder.path());
      const auto drafter = make_mtp_drafter(folder.path(), engine->options());
      EXPECT_EQ(drafter->name(), "mtp");
      for (const auto& [name, sampler] : all_samplers()) {
        SCOPED_TRACE(name);
        const AskedAnswer asked = ask(sampler);
        const ToldAnswer plain = make_answer(*engine, asked);
        const SpeculationCounts counts = expect_same_with(*drafter, *engine, asked, plain, 5);
        if (!is_simple || name != "greedy") continue;
        EXPECT_EQ(counts.num_accepted_draft_tokens, counts.num_draft_tokens);
        EXPECT_GT(counts.mean_acceptance_length(), 4.0);
      }
    }
  }
}

TEST(Mtp, QuantizedLayersGuessToo) {
  for (const MtpModel& model : mtp_models()) {
    SCOPED_TRACE(model.oracle);
    const MtpFolder folder(model, /*is_simple=*/false);
    const TemporaryFolder quantized;
    QuantizeOptions options;
    options.scheme = "int8";
    const QuantizeReport report = quantize_checkpoint(folder.path(), quantized / "out", options);
    const std::string joined = model.joined.substr(0, model.joined.rfind('.'));
    EXPECT_TRUE(std::ranges::any_of(report.quantized,
                                    [&](const auto& tensor) { return tensor.name == joined; }));
    for (const UnquantizedTensorReport& tensor : report.unquantized) {
      EXPECT_FALSE(tensor.reason.starts_with("the model does not read it")) << tensor.name;
    }
    const auto engine = load(quantized / "out");
    const auto drafter = make_mtp_drafter(quantized / "out", engine->options());
    const AskedAnswer asked = ask(SamplerOptions());
    expect_same_with(*drafter, *engine, asked, make_answer(*engine, asked), 5);
  }
}

TEST(Mtp, OfSeveralLayersAnswersAreThoseWithout) {
  for (const int layers : {2, 3}) {
    for (const bool is_simple : {false, true}) {
      SCOPED_TRACE(std::to_string(layers) + (is_simple ? ", simple" : ""));
      const MtpFolder folder(mtp_models()[0], is_simple, layers);
      const auto engine = load(folder.path());
      const auto drafter = make_mtp_drafter(folder.path(), engine->options());
      for (const auto& [name, sampler] : all_samplers()) {
        SCOPED_TRACE(name);
        const AskedAnswer asked = ask(sampler);
        const ToldAnswer plain = make_answer(*engine, asked);
        for (const int drafts : {1, 2, 5}) {
          const SpeculationCounts counts =
              expect_same_with(*drafter, *engine, asked, plain, drafts);
          if (!is_simple || name != "greedy") continue;
          EXPECT_EQ(counts.num_accepted_draft_tokens, counts.num_draft_tokens);
        }
      }
    }
  }
}

TEST(Mtp, OfSeveralLayersATextCanBeForkedAndBeginAnew) {
  const MtpFolder folder(mtp_models()[0], /*is_simple=*/false, 2);
  const auto engine = load(folder.path(), 3);
  const auto drafter = make_mtp_drafter(folder.path(), engine->options());
  const std::vector<int32_t> prompt = ask(SamplerOptions()).prompt;
  const SequenceId sequence = engine->create_sequence();
  const auto start = [&] { return drafter->start({.prompt_tokens = 20, .max_tokens = 100}); };
  const auto show = [&](DraftTextId to, int64_t begin, int64_t end) {  // positions of the prompt
    engine->truncate(sequence, begin);
    StepInput input{sequence, std::span(prompt).subspan(static_cast<size_t>(begin),
                                                        static_cast<size_t>(end - begin))};
    input.rows = StepInput::Rows::kNone;
    engine->step({&input, 1});
    drafter->observe(to, begin, engine->features(sequence));
  };
  const auto guess = [&](DraftTextId of) {
    std::vector<int32_t> tokens(4);
    DraftProposal proposal{of, tokens};
    drafter->propose({&proposal, 1});
    EXPECT_EQ(proposal.count, 4);
    return tokens;
  };
  const DraftTextId text = start();
  drafter->commit(text, std::span(prompt).first(20));
  show(text, 0, 19);
  const std::vector<int32_t> first = guess(text);
  EXPECT_EQ(guess(text), first);  // the text did not go on
  const DraftTextId fork = drafter->fork(text);
  EXPECT_EQ(guess(fork), first);
  drafter->commit(text, std::span(prompt).subspan(20, 6));
  show(text, 19, 25);
  EXPECT_NE(guess(text), first);
  // Another attempt: the first layer has what it had, a further one begins there.
  const std::vector<int32_t> other = {7};
  drafter->truncate(text, 20);
  drafter->commit(text, other);
  show(text, 19, 20);
  const std::vector<int32_t> again = guess(text);
  drafter->release(text, false);
  const DraftTextId fresh = start();
  drafter->commit(fresh, std::span(prompt).first(20));
  drafter->commit(fresh, other);
  show(fresh, 0, 20);
  EXPECT_EQ(again.front(), guess(fresh).front());
  drafter->release(fresh, false);
  drafter->release(fork, false);
}

TEST(Mtp, EndsWithItsAnswer) {
  for (const MtpModel& model : mtp_models()) {
    const MtpFolder folder(model, /*is_simple=*/true);
    const auto engine = load(folder.path());
    const auto drafter = make_mtp_drafter(folder.path(), engine->options());
    expect_cancelled_guesses(*engine, *drafter, ask(all_samplers()[1].second));
  }
}

TEST(Mtp, HasAPartOfTheEnginesBudget) {
  const MtpFolder folder(mtp_models()[0], /*is_simple=*/true, 2);
  EngineOptions options = load(folder.path())->options();
  const uint64_t needed = mtp_kv_bytes(folder.path(), options);
  const auto unlimited = make_mtp_drafter(folder.path(), options);
  EXPECT_GT(unlimited->memory().weight_bytes, 0U);
  EXPECT_EQ(unlimited->memory().kv_bytes, needed);
  EXPECT_GT(needed, 0U);
  options.kv_bytes += needed;
  options.draft_kv_bytes = needed;
  const auto engine = Engine::load(folder.path(), options);
  EXPECT_EQ(engine->options().kv_bytes, options.kv_bytes);
  const auto drafter = make_mtp_drafter(folder.path(), engine->options());
  EXPECT_EQ(drafter->memory().kv_bytes, needed);
  const AskedAnswer asked = ask(all_samplers()[0].second);
  expect_same_with(*drafter, *engine, asked, make_answer(*engine, asked), 5);
  options.draft_kv_bytes = 100;
  const Error error = error_of([&] { make_mtp_drafter(folder.path(), options); });
  EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  EXPECT_TRUE(is_one_line_with(
      error, {std::to_string(needed), "'draft_kv_bytes'", "100", std::to_string(options.kv_bytes)}))
      << error.what();
  // An engine that was given its bytes, and none for drafters.
  options.draft_kv_bytes.reset();
  const auto alone = Engine::load(folder.path(), options);
  const ToldAnswer found = make_answer(*alone, asked, {.drafter = unlimited.get()});
  EXPECT_NE(found.result.speculation.problem.find("'draft_kv_bytes'"), std::string::npos)
      << found.result.speculation.problem;
}

TEST(Mtp, TreesAreChainsAndTheGateMayPause) {
  const MtpFolder folder(mtp_models()[0], /*is_simple=*/false);
  const auto engine = load(folder.path());
  const auto drafter = make_mtp_drafter(folder.path(), engine->options());
  AskedAnswer asked = ask(all_samplers()[0].second);
  asked.options.max_new_tokens = 110;
  const ToldAnswer plain = make_answer(*engine, asked);
  const ToldAnswer tree =
      make_answer(*engine, asked, {.drafter = drafter.get(), .max_drafts = 6, .max_depth = 3});
  expect_same_answer(plain, tree);
  EXPECT_EQ(tree.result.speculation.problem, "");
  EXPECT_EQ(tree.result.speculation.acceptance_histogram.size(), 7U);
  // Passes that cost as much as their tokens: guesses never pay. What waits meanwhile is taken in.
  const PassCosts costs({{1, 1.0}, {8, 8.0}});
  const ToldAnswer paused =
      make_answer(*engine, asked, {.drafter = drafter.get(), .max_drafts = 6, .costs = costs});
  expect_same_answer(plain, paused);
  EXPECT_EQ(paused.result.speculation.problem, "");
  EXPECT_GT(paused.result.speculation.num_paused_passes, 64);
}

TEST(Mtp, FollowsSeveralAnswersAtOnceAndGivesTheirSequencesBack) {
  const MtpFolder folder(mtp_models()[1], /*is_simple=*/true);
  const auto engine = load(folder.path(), 3);
  const AskedAnswer asked = ask(all_samplers()[0].second);
  const std::vector<int32_t> truth = make_answer(*engine, asked).result.tokens;
  const auto drafter = make_mtp_drafter(folder.path(), engine->options());
  for (int round = 0; round < 3; ++round) {  // more texts in all than it may follow at once
    GenerateOptions generation = asked.options;
    generation.speculation = {.drafter = drafter.get(), .max_drafts = 4};
    std::vector<Generation> answers;
    answers.reserve(3);
    for (int i = 0; i < 3; ++i) answers.emplace_back(*engine, asked.prompt, generation);
    const int64_t passes = answer_together(*engine, answers, 8, 5);
    EXPECT_LT(passes, 40);
    for (Generation& one : answers) {
      const GenerateResult result = one.take_result();
      EXPECT_EQ(result.tokens, truth);
      EXPECT_EQ(result.speculation.problem, "");
      EXPECT_GT(result.speculation.num_accepted_draft_tokens, 30);
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
