// SPDX-License-Identifier: Apache-2.0
// Answers that outgrow their context: behind each shift the tokens are those of a fresh prompt of
// what was kept.
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

constexpr int kContext = 33;

EngineOptions shift_options(int threads = 1) {
  EngineOptions options = test_options(threads, 16);
  options.max_context = kContext;
  options.max_step_tokens = 320;
  options.audit_mode = AuditMode::kDeferred;
  return options;
}

GenerateOptions asked(int64_t keep, float temperature, int tokens = 90) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  options.ignore_end_of_text = true;
  options.context_shift = true;
  options.context_keep = keep;
  options.sampler.temperature = temperature;
  options.sampler.seed = 3;
  return options;
}

/// Shifts the context by hand: prompts of what is kept, each answered until its context is full.
std::vector<int32_t> by_hand(Engine& engine, std::vector<int32_t> prompt, GenerateOptions options) {
  options.context_shift = false;
  std::vector<int32_t> all;
  const auto wanted = static_cast<size_t>(options.max_new_tokens);
  while (all.size() < wanted) {
    options.max_new_tokens = static_cast<int>(wanted - all.size());
    const GenerateResult result = generate(engine, prompt, options);
    all.insert(all.end(), result.tokens.begin(), result.tokens.end());
    if (result.reason != StopReason::kContextFull) break;
    prompt.insert(prompt.end(), result.tokens.begin(), result.tokens.end());
    // The last token has no place yet; half of those behind the kept ones goes.
    const int64_t held = std::ssize(prompt) - 1;
    EXPECT_EQ(held, kContext);
    const auto first = prompt.begin() + options.context_keep;
    prompt.erase(first, first + (held - options.context_keep) / 2);
  }
  return all;
}

class ContextShift : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(ContextShift, GoesOnAsAFreshPromptOfWhatWasKept) {
  const VariantFolder folder(GetParam());
  const auto engine = Engine::load(folder.path(), shift_options());
  const auto other = Engine::load(folder.path(), shift_options(2));
  const std::vector<int32_t> prompt = prompt_ids(12, engine->summary().vocab_size);
  for (const int64_t keep : {0, 5, 12, 31}) {
    for (const float temperature : {0.0F, 0.8F}) {
      const GenerateOptions options = asked(keep, temperature);
      const GenerateResult result = generate(*engine, prompt, options);
      EXPECT_EQ(result.reason, StopReason::kLength);
      EXPECT_EQ(result.tokens.size(), 90u);
      EXPECT_EQ(result.tokens, by_hand(*other, prompt, options)) << keep << ", " << temperature;
      ASSERT_FALSE(result.shifts.empty());
      EXPECT_EQ(result.shifts[0].tokens, kContext - 12 + 1);
      EXPECT_EQ(result.shifts[0].kept, keep);
      EXPECT_EQ(result.shifts[0].dropped, (kContext - keep) / 2);
      // Small passes, beside another sequence.
      Generation generation(*engine, prompt, options);
      const SequenceId beside = engine->create_sequence();
      for (int step = 0; !generation.finished(); ++step) {
        const int32_t token = prompt[static_cast<size_t>(step) % 7];
        std::vector<StepInput> inputs = {generation.next_input(4)};
        if (step < kContext) inputs.push_back({beside, {&token, 1}});
        const auto outputs = engine->step(inputs);
        generation.accept(outputs.first(outputs.size() - (inputs.size() - 1)));
      }
      EXPECT_EQ(generation.result().tokens, result.tokens);
      engine->release(beside);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Models, ContextShift,
                         ::testing::Values(ModelVariant{"qwen3_moe", ""},
                                           ModelVariant{"gpt_oss", ""},      // windows
                                           ModelVariant{"qwen3_next", ""}),  // a state
                         variant_name);

TEST(ContextShiftEnds, TheSequenceHoldsWhatWasKeptAndWhatCameBehind) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), shift_options());
  const std::vector<int32_t> prompt = prompt_ids(12, 256);
  GenerateOptions options = asked(4, 0, 40);
  options.sequence = engine->create_sequence();
  std::vector<int32_t> told;
  const GenerateResult result = generate(*engine, prompt, options, [&](const TokenEvent& event) {
    told.push_back(event.token);
    return true;
  });
  EXPECT_EQ(told, result.tokens);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), result.tokens.begin(), result.tokens.end());
  int64_t dropped = 0;
  for (const vitrine::ContextShift& shift : result.shifts) dropped += shift.dropped;
  const std::span<const int32_t> held = engine->tokens(options.sequence);
  ASSERT_EQ(std::ssize(held), std::ssize(all) - 1 - dropped);
  EXPECT_TRUE(std::equal(held.begin(), held.begin() + 4, prompt.begin()));
  EXPECT_TRUE(std::equal(held.begin() + 4, held.end(), all.end() - 1 - (std::ssize(held) - 4)));
}

TEST(ContextShiftEnds, Refusals) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), shift_options());
  const std::vector<int32_t> prompt = prompt_ids(12, 256);
  for (const int64_t keep : {-1, kContext - 1}) {
    EXPECT_THROW(generate(*engine, prompt, asked(keep, 0)), Error);
  }
  const auto drafter = make_drafter("suffix");
  GenerateOptions options = asked(0, 0);
  options.speculation.drafter = drafter.get();
  EXPECT_THROW(generate(*engine, prompt, options), Error);
}

}  // namespace
}  // namespace vitrine::testing
