// SPDX-License-Identifier: Apache-2.0
// Generation: why it stops, what it refuses, and seeds that mean the same text in any company.
#include <set>

#include "tests/engine/engine_fixture.h"
#include "tests/support/in_sequence.h"

namespace vitrine::testing {
namespace {

constexpr uint64_t kSeed = 42;

EngineOptions generate_engine_options() {
  EngineOptions options = test_options(2);
  options.keep_logits = false;
  options.max_context = 64;
  options.max_step_tokens = 16;
  options.max_logit_rows = 8;
  options.max_sequences = 5;
  return options;
}

class Generate : public ::testing::Test {
 protected:
  Generate()
      : engine_(Engine::load(oracle_folder("qwen3_moe"), generate_engine_options())),
        ids_(prompt_ids(30, 256)) {
    options_.sampler.temperature = 0;
    options_.ignore_end_of_text = true;
  }
  GenerateResult run(size_t prompt = 30, const std::function<bool(const TokenEvent&)>& call = {}) {
    const auto blocks = engine_->kv_blocks();
    const GenerateResult result = generate(*engine_, std::span(ids_).first(prompt), options_, call);
    EXPECT_EQ(engine_->kv_blocks(), blocks) << "the sequence was not released";
    return result;
  }
  void expect_refused(std::span<const int32_t> prompt,
                      std::initializer_list<std::string_view> words) {
    const auto blocks = engine_->kv_blocks();
    const Error error = error_of([&] { generate(*engine_, prompt, options_); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_EQ(engine_->kv_blocks(), blocks);
    options_.max_new_tokens = 2;
    EXPECT_EQ(run().tokens.size(), 2u);
  }
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  GenerateOptions options_;
};

TEST_F(Generate, StopsAtItsLength) {
  for (int count : {0, 1, 7}) {
    options_.max_new_tokens = count;
    const GenerateResult result = run();
    EXPECT_EQ(result.tokens.size(), static_cast<size_t>(count));
    EXPECT_EQ(result.reason, StopReason::kLength);
    EXPECT_EQ(result.prompt_tokens, 30);
  }
  EXPECT_EQ(stop_reason_name(StopReason::kLength), "length");
}

TEST_F(Generate, StopsWhereTheContextIsFull) {
  options_.max_new_tokens = 1000;
  GenerateResult result = run();
  EXPECT_EQ(result.reason, StopReason::kContextFull);
  EXPECT_EQ(result.tokens.size(), 64u - 30u + 1u);  // the last one needs no place
  EXPECT_EQ(stop_reason_name(result.reason), "context full");
  ids_ = prompt_ids(64, 256);
  result = run(64);
  EXPECT_EQ(result.reason, StopReason::kContextFull);
  EXPECT_EQ(result.tokens.size(), 1u);
}

TEST_F(Generate, StopsAtTheEndOfText) {
  options_.max_new_tokens = 8;
  const std::vector<int32_t> text = run().tokens;
  size_t first = 3;
  while (std::find(text.begin(), text.begin() + static_cast<ptrdiff_t>(first), text[first]) !=
         text.begin() + static_cast<ptrdiff_t>(first)) {
    ASSERT_LT(++first, text.size());
  }
  // The same weights with that id as the end of text.
  TemporaryFolder folder;
  for (const char* name : {"config.json", "model.safetensors"}) {
    write_bytes(folder / name, read_bytes(oracle_folder("qwen3_moe") + "/" + name));
  }
  write_bytes(folder / "generation_config.json",
              "{\"eos_token_id\": [255, " + std::to_string(text[first]) + "]}");
  engine_ = Engine::load(folder.path(), generate_engine_options());
  options_.ignore_end_of_text = false;
  GenerateResult result = run();
  EXPECT_EQ(result.reason, StopReason::kEndOfText);
  EXPECT_EQ(stop_reason_name(result.reason), "end of text");
  EXPECT_EQ(result.tokens,
            std::vector<int32_t>(text.begin(), text.begin() + static_cast<ptrdiff_t>(first) + 1));
  options_.ignore_end_of_text = true;
  EXPECT_EQ(run().tokens, text);
}

TEST_F(Generate, IsCancelledByTheCallback) {
  options_.max_new_tokens = 20;
  std::vector<TokenEvent> events;
  const GenerateResult result = run(30, [&](const TokenEvent& event) {
    events.push_back(event);
    return events.size() < 4;
  });
  EXPECT_EQ(result.reason, StopReason::kCancelled);
  EXPECT_EQ(stop_reason_name(result.reason), "cancelled");
  ASSERT_EQ(result.tokens.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i].token, result.tokens[i]);
    EXPECT_EQ(events[i].position, static_cast<int64_t>(30 + i));
  }
}

TEST_F(Generate, ReleasesItsSequenceWhenTheCallbackThrows) {
  const auto blocks = engine_->kv_blocks();
  EXPECT_THROW(generate(*engine_, ids_, options_,
                        [](const TokenEvent&) -> bool { throw std::runtime_error("host"); }),
               std::runtime_error);
  EXPECT_EQ(engine_->kv_blocks(), blocks);
}

TEST_F(Generate, RefusesWhatCannotBe) {
  expect_refused({}, {"prompt", "at least one"});
  expect_refused(prompt_ids(65, 256), {"65", "64", "shorten"});
  const std::vector<int32_t> bad = {1, 2, 256};
  expect_refused(bad, {"256", "255"});
  options_.max_new_tokens = -1;
  expect_refused(ids_, {"max_new_tokens", "-1"});
  options_.sampler.top_p = 1.5f;
  EXPECT_EQ(error_of([&] { generate(*engine_, ids_, options_); }).kind(),
            ErrorKind::kInvalidArgument);
}

// Samples `count` tokens through step(), with other sequences in the same steps.
std::vector<int32_t> sample_in_company(Engine& engine, std::span<const int32_t> ids, int count,
                                       int others, size_t chunk, uint64_t seed,
                                       uint32_t branch = 0) {
  const SamplerOptions options{.temperature = 1.3f, .top_k = 100, .top_p = 0.98f, .min_p = 0.001f};
  std::vector<SamplerPipeline> pipelines;
  std::vector<StepInput> inputs;
  std::vector<int32_t> next(static_cast<size_t>(others) + 1, 7);
  for (int i = 0; i <= others; ++i) pipelines.push_back(SamplerPipeline::from_options(options));
  for (int i = 0; i <= others; ++i) {
    const auto index = static_cast<size_t>(i);
    StepInput input;
    input.sequence = engine.create_sequence();
    input.sampler = &pipelines[index];
    input.seed = i == others ? seed : 1000u + index;
    input.branch = i == others ? branch : 0;
    input.tokens = {&next[index], 1};
    inputs.push_back(input);
  }
  std::vector<int32_t> tokens;
  size_t fed = 0;
  while (tokens.size() < static_cast<size_t>(count)) {
    StepInput& ours = inputs.back();
    if (fed < ids.size()) {
      ours.tokens = ids.subspan(fed, std::min(chunk, ids.size() - fed));
      fed += ours.tokens.size();
      ours.rows = fed == ids.size() ? StepInput::Rows::kLast : StepInput::Rows::kNone;
    } else {
      ours.tokens = {&next.back(), 1};
    }
    const std::span<const StepOutput> outputs = engine.step(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) next[i] = outputs[i].token;
    if (fed == ids.size()) tokens.push_back(outputs.back().token);
  }
  for (const StepInput& input : inputs) engine.release(input.sequence);
  return tokens;
}

TEST_F(Generate, SameSeedSameTextWhateverTheBatch) {
  const std::vector<int32_t> alone = sample_in_company(*engine_, ids_, 24, 0, 16, kSeed);
  EXPECT_EQ(sample_in_company(*engine_, ids_, 24, 3, 4, kSeed), alone);
  EXPECT_EQ(sample_in_company(*engine_, ids_, 24, 1, 12, kSeed), alone);
  auto single = Engine::load(oracle_folder("qwen3_moe"), test_options(1, 16));
  EXPECT_EQ(sample_in_company(*single, ids_, 24, 2, 100, kSeed), alone);
  options_.sampler = {
      .temperature = 1.3f, .top_k = 100, .top_p = 0.98f, .min_p = 0.001f, .seed = kSeed};
  options_.max_new_tokens = 24;
  EXPECT_EQ(run().tokens, alone);
  EXPECT_GT(std::set<int32_t>(alone.begin(), alone.end()).size(), 8u) << "nothing was sampled";
}

TEST(Recorder, SaysTheSameOnAnyNumberOfThreads) {
  for (const ModelVariant& variant : {ModelVariant{"shipped", ""}, ModelVariant{"granitemoe", ""},
                                      ModelVariant{"qwen3_moe", "int4", 32}}) {
    const VariantFolder folder(variant);
    for (const bool attribution : {false, true}) {
      std::vector<std::vector<std::byte>> expected;
      for (const int threads : {1, 2, 3}) {
        EngineOptions options = generate_engine_options();
        options.threads = threads;
        options.audit_mode = AuditMode::kDeferred;
        options.attribution = attribution;
        const auto engine = Engine::load(folder.path(), options);
        VectorSink sink;
        engine->set_audit_sink(&sink);
        const std::vector<int32_t> ids = prompt_ids(30, 256);
        for (const int others : {0, 3}) sample_in_company(*engine, ids, 12, others, 12, kSeed);
        engine->set_audit_sink(nullptr);
        ASSERT_GT(sink.records().size(), 24u);
        if (threads == 1) expected = sink.records();
        EXPECT_EQ(sink.records(), expected) << variant.label() << ", threads " << threads;
      }
    }
  }
}

TEST_F(Generate, AnotherSeedOrBranchIsAnotherText) {
  const std::vector<int32_t> text = sample_in_company(*engine_, ids_, 24, 0, 16, kSeed);
  const std::vector<int32_t> seed = sample_in_company(*engine_, ids_, 24, 0, 16, kSeed + 1);
  const std::vector<int32_t> branch = sample_in_company(*engine_, ids_, 24, 0, 16, kSeed, 1);
  EXPECT_NE(text, seed);
  EXPECT_NE(text, branch);
  EXPECT_NE(seed, branch);
  EXPECT_EQ(sample_in_company(*engine_, ids_, 24, 2, 5, kSeed, 1), branch);
}

// Greedy in the head's epilogue, greedy as a stage behind kept logits: one text.
TEST_F(Generate, GreedyIsTheArgmax) {
  options_.max_new_tokens = 20;
  const std::vector<int32_t> text = run().tokens;
  auto keeper = Engine::load(oracle_folder("qwen3_moe"), test_options());
  std::vector<int32_t> ids = ids_;
  for (int32_t token : text) {
    const Rows rows = score(*keeper, ids);
    const std::vector<float>& row = rows.rbegin()->second;
    EXPECT_EQ(token, std::max_element(row.begin(), row.end()) - row.begin());
    ids.push_back(token);
  }
}

TEST_F(Generate, StopsAtGivenTokens) {
  options_.max_new_tokens = 20;
  const std::vector<int32_t> text = run().tokens;
  options_.ignore_end_of_text = false;
  const int32_t stop = text[7];
  options_.stop_token_ids = {stop, 255};
  const GenerateResult result = run();
  const auto first = std::ranges::find(text, stop) - text.begin();
  ASSERT_EQ(result.tokens.size(), static_cast<size_t>(first) + 1);
  EXPECT_EQ(result.tokens.back(), stop);
  EXPECT_EQ(result.reason, StopReason::kEndOfText);
  options_.ignore_end_of_text = true;
  EXPECT_EQ(run().tokens, text);
}

// A conversation: what a sequence holds is not computed again, and the text is that of one prompt.
TEST_F(Generate, ContinuesASequence) {
  options_.max_new_tokens = 6;
  const SequenceId sequence = engine_->create_sequence();
  const auto again = [&](std::span<const int32_t> prompt) {
    return generate(*engine_, prompt, in_sequence(sequence, options_));
  };
  const GenerateResult first = again(std::span(ids_).first(10));
  EXPECT_EQ(first.tokens, run(10).tokens);
  EXPECT_EQ(engine_->length(sequence), 10 + 5) << "the last token was not fed";
  std::vector<int32_t> whole(ids_.begin(), ids_.begin() + 10);
  whole.insert(whole.end(), first.tokens.begin(), first.tokens.end());
  whole.insert(whole.end(), ids_.begin() + 10, ids_.begin() + 20);
  const GenerateResult second = again(std::span(whole).subspan(15));
  EXPECT_EQ(second.prompt_tokens, 11);
  EXPECT_EQ(second.tokens, generate(*engine_, whole, options_).tokens);
  EXPECT_EQ(engine_->length(sequence), static_cast<int64_t>(whole.size()) + 5);

  engine_->truncate(sequence, 12);
  int64_t position = 0;
  generate(*engine_, std::span(whole).subspan(12), in_sequence(sequence, options_),
           [&](const TokenEvent& event) {
             position = event.position;
             return false;
           });
  EXPECT_EQ(position, static_cast<int64_t>(whole.size()));
  EXPECT_EQ(engine_->length(sequence), static_cast<int64_t>(whole.size()));

  const Error error = error_of([&] {
    again(std::span(ids_));
    again(std::span(ids_));
  });
  EXPECT_TRUE(is_one_line_with(error, {"the prompt has 30 tokens behind the", "context holds 64"}))
      << error.what();
  options_.max_new_tokens = 60;
  engine_->truncate(sequence, 40);
  const GenerateResult full = again(std::span(ids_).first(20));
  EXPECT_EQ(full.reason, StopReason::kContextFull);
  EXPECT_EQ(full.tokens.size(), 64u - 60 + 1);
  engine_->release(sequence);
}

}  // namespace
}  // namespace vitrine::testing
