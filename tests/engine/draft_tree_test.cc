// SPDX-License-Identifier: Apache-2.0
// Drafts that are a tree: each sees what it stands behind and nothing else, and the answer is the
// one without.
#include "tests/engine/draft_tree_rows.h"
#include "tests/engine/tree_oracle.h"
#include "vitrine/federation_engine.h"

namespace vitrine::testing {
namespace {

EngineOptions tree_options(const std::string& codec = "") {
  EngineOptions options = test_options(2, 16);
  options.max_context = 160;
  options.max_step_tokens = 48;
  options.max_logit_rows = 40;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  if (!codec.empty()) options.kv_codecs = {codec};
  return options;
}

template <typename Call>
void expect_error(ErrorKind kind, const std::string& part, Call&& call) {
  const Error error = error_of(call);
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(is_one_line_with(error, {part})) << error.what();
}

AskedAnswer ask(const Stepper& stepper, const std::string& name, const SamplerOptions& sampler) {
  AskedAnswer asked;
  asked.name = name;
  asked.prompt = prompt_ids(21, stepper.summary().vocab_size);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = 60;  // over borders of blocks
  asked.options.ignore_end_of_text = true;
  return asked;
}

// Returns the most tokens that passes had on average.
double expect_same_with_trees(Stepper& stepper, const AskedAnswer& asked) {
  SCOPED_TRACE(asked.name);
  double longest = 0;
  const ToldAnswer plain = make_answer(stepper, asked);
  for (const double probability : {0.0, 0.3, 0.7, 1.0}) {
    for (const auto& [drafts, depth] : {std::pair(3, 2), std::pair(17, 5)}) {
      SCOPED_TRACE(std::to_string(drafts) + " drafts, each right with " +
                   std::to_string(probability));
      TreeOracle oracle(plain.result.tokens, probability, stepper.summary().vocab_size);
      const SpeculationCounts counts =
          expect_same_by_oracle(stepper, asked, plain, oracle, drafts, depth);
      EXPECT_GT(oracle.trees, 0);
      longest = std::max(longest, counts.mean_acceptance_length());
    }
  }
  return longest;
}

TEST(DraftTree, ChangesNothingWithAnySampler) {
  for (const std::string& folder : {oracle_folder("qwen3_moe"), oracle_folder("glm4_moe_lite"),
                                    oracle_folder("gpt_oss"), shipped_model()}) {
    SCOPED_TRACE(folder);
    for (const char* codec : {"f32", ""}) {
      const auto engine = Engine::load(folder, tree_options(codec));
      const auto free = engine->kv_blocks().first;
      for (const auto& [name, sampler] : all_samplers()) {
        AskedAnswer asked = ask(*engine, name, sampler);
        if (name == "drawn") asked.options.logprobs = 3;
        EXPECT_GT(expect_same_with_trees(*engine, asked), 2);
      }
      EXPECT_EQ(engine->kv_blocks().first, free);
    }
  }
}

TEST(DraftTree, OfADrafterThatKnowsOfNoneIsAChainOfItsDepth) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), tree_options());
  const AskedAnswer asked = ask(*engine, "greedy", all_samplers()[0].second);
  const ToldAnswer plain = make_answer(*engine, asked);
  OracleDrafter oracle(plain.result.tokens, 1, engine->summary().vocab_size);
  const ToldAnswer found =
      make_answer(*engine, asked, {.drafter = &oracle, .max_drafts = 8, .max_depth = 3});
  expect_same_answer(plain, found);
  const SpeculationCounts& counts = found.result.speculation;
  EXPECT_EQ(counts.problem, "");
  EXPECT_EQ(counts.num_accepted_draft_tokens, counts.num_draft_tokens);
  EXPECT_EQ(counts.acceptance_histogram[3], 14);
  EXPECT_EQ(counts.num_spec_steps, 15);
}

TEST(DraftTree, EndsAtAnEndOfTextAndAtTheContext) {
  EngineOptions options = tree_options();
  options.max_context = 40;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  AskedAnswer asked = ask(*engine, "context", all_samplers()[1].second);
  expect_same_with_trees(*engine, asked);
  const std::vector<int32_t> tokens = make_answer(*engine, asked).result.tokens;
  asked.options.ignore_end_of_text = false;
  for (const size_t index : {1U, 7U, 12U}) {
    asked.options.stop_token_ids = {tokens[index]};
    expect_same_with_trees(*engine, asked);
  }
}

TEST(DraftTree, ChangesNothingWithAttribution) {
  EngineOptions options = tree_options();
  options.attribution = true;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  for (const auto& [name, sampler] : all_samplers()) {
    expect_same_with_trees(*engine, ask(*engine, name, sampler));
  }
}

/// Models whose rows of logits have the bits of a chain through each node.
class DraftTreeStepTest : public ::testing::TestWithParam<std::string> {};

TEST_P(DraftTreeStepTest, GivesEachNodeTheBitsOfItsChain) {
  for (const char* codec : {"f32", "i16"}) {
    EngineOptions options = tree_options(codec);
    options.keep_logits = true;
    options.audit_mode = AuditMode::kNone;
    options.audit_level = AuditLevel::kStandard;
    const auto engine = Engine::load(oracle_folder(GetParam()), options);
    const int32_t vocab = engine->summary().vocab_size;
    std::mt19937 random(5);
    for (const int past : {3, 15, 16, 30, 61}) {
      const std::vector<int32_t> prompt = prompt_ids(past, vocab);
      const SequenceId base = engine->create_sequence();
      for (int begin = 0; begin < past; begin += 40) {  // as much as a step takes
        StepInput fed;
        fed.sequence = base;
        fed.tokens = std::span(prompt).subspan(static_cast<size_t>(begin),
                                               static_cast<size_t>(std::min(40, past - begin)));
        fed.rows = StepInput::Rows::kNone;
        engine->step({{fed}});
      }
      const TreeTokens tree(past, 23, vocab, random);
      const SequenceId sequence = engine->fork(base);
      const auto rows = logits_of(engine->step({{tree.input(sequence)}}));
      EXPECT_GE(engine->length(sequence), past + tree.known);
      engine->release(sequence);
      SCOPED_TRACE(std::string(codec) + ", " + std::to_string(past) + " positions before");
      expect_rows_of_chains(*engine, base, tree, rows);
      engine->release(base);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DraftTreeStepTest,
                         ::testing::Values("qwen3_moe", "llama", "deepseek_v3", "gpt_oss",
                                           "gemma4_text"),
                         [](const auto& info) { return info.param; });

TEST(DraftTree, RefusesWhatIsNone) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), tree_options());
  const SequenceId sequence = engine->create_sequence();
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  const auto refuses = [&](int32_t drafts, std::vector<int32_t> parents, const std::string& part) {
    StepInput input{.sequence = sequence, .tokens = tokens};
    input.num_drafts = drafts;
    input.draft_parents = parents;
    expect_error(ErrorKind::kInvalidArgument, part, [&] { engine->step({{input}}); });
    expect_error(ErrorKind::kInvalidArgument, part, [&] { engine->fits({{input}}); });
    EXPECT_EQ(engine->length(sequence), 0);
  };
  refuses(2, {2}, "1 are given; expected one for each of the 2 drafts");
  refuses(2, {1, 2}, "draft 0 stands behind token 1; expected 2 to 2");
  refuses(2, {2, 4}, "draft 1 stands behind token 4; expected 2 to 3");
  refuses(2, {2, -1}, "draft 1 stands behind token -1");
  // More drafts than tokens: where the first of them stands would lie before the tokens.
  refuses(5, {-1, 0, 1, 2, 3}, "num_drafts 5; expected 0 to 4, with a token before the drafts");
  refuses(7, {-3, -3, -2, -1, 0, 1, 2}, "num_drafts 7");
  refuses(-1, {0}, "num_drafts -1");
  refuses(-1, {}, "num_drafts -1");
  const std::vector<int32_t> twins = {1, 2, 2};
  StepInput input{.sequence = sequence, .tokens = twins};
  input.num_drafts = 2;
  const std::vector<int32_t> parents = {0, 0};
  input.draft_parents = parents;
  expect_error(ErrorKind::kInvalidArgument, "drafts 0 and 1 are one token behind one token",
               [&] { engine->step({{input}}); });
}

TEST(DraftTree, NeedsBlocksForItsBranches) {
  EngineOptions options = tree_options("f32");
  options.max_sequences = 1;
  options.max_context = 64;  // four blocks of 16
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  const SequenceId sequence = engine->create_sequence();
  const std::vector<int32_t> prompt = prompt_ids(40, engine->summary().vocab_size);
  engine->step({{StepInput{.sequence = sequence, .tokens = prompt}}});
  const std::vector<int32_t> tokens = {1, 2, 3, 4}, parents = {0, 0, 0};
  StepInput input{.sequence = sequence, .tokens = tokens};
  input.num_drafts = 3;
  input.draft_parents = parents;
  EXPECT_EQ(engine->fits({{input}}).blocks, 2);
  expect_error(ErrorKind::kOutOfMemory, "KV blocks", [&] { engine->step({{input}}); });
  EXPECT_EQ(engine->length(sequence), 40);
  EXPECT_EQ(engine->kv_blocks(), std::pair(int64_t{1}, int64_t{4}));
  input.num_drafts = 2;
  input.tokens = std::span(tokens).first(3);
  input.draft_parents = std::span(parents).first(2);
  engine->step({{input}});
}

TEST(DraftTree, IsRefusedWhereItCannotRun) {
  const std::vector<int32_t> tokens = {1, 2, 3}, parents = {0, 0};
  const auto expect_refused = [&](Stepper& stepper, const std::string& part) {
    StepInput input{.sequence = stepper.create_sequence(), .tokens = tokens};
    input.num_drafts = 2;
    input.draft_parents = parents;
    expect_error(ErrorKind::kUnsupported, part, [&] { stepper.step({{input}}); });
  };
  EngineOptions options = tree_options();
  expect_refused(*Engine::load(oracle_folder("qwen3_next"), options), "chain of drafts");
  expect_refused(*Federation::load(two_specialists(), options), "draft_parents");
}

TEST(DraftTree, OfAnAnswerIsAChainWhereItCannotRun) {
  const auto expect_chains = [](Stepper& stepper) {
    const AskedAnswer asked = ask(stepper, "drawn", all_samplers()[1].second);
    const ToldAnswer plain = make_answer(stepper, asked);
    TreeOracle oracle(plain.result.tokens, 0.7, stepper.summary().vocab_size);
    const SpeculationCounts counts = expect_same_by_oracle(stepper, asked, plain, oracle, 6, 3);
    EXPECT_EQ(oracle.trees, 0);
    EXPECT_GT(counts.num_accepted_draft_tokens, 10);
  };
  const EngineOptions options = tree_options();
  expect_chains(*Engine::load(oracle_folder("qwen3_next"), options));
  expect_chains(*Federation::load(two_specialists(), options));
}

/// Keeps what it is shown of the residual stream.
class Observer final : public OracleDrafter {
 public:
  Observer(const std::vector<int32_t>& truth, int32_t vocab) : OracleDrafter(truth, 0.7, vocab) {}
  std::span<const int> feature_layers() const override { return layers; }
  void observe(DraftTextId, int64_t first, std::span<const float> rows) override {
    ASSERT_LE(static_cast<size_t>(first), seen.size());
    const auto count = rows.size() / width;
    seen.resize(static_cast<size_t>(first));
    for (size_t i = 0; i < count; ++i) {
      const auto row = rows.subspan(i * width, width);
      seen.emplace_back(row.begin(), row.end());
    }
  }
  std::vector<int> layers;
  size_t width = 0;
  std::vector<std::vector<float>> seen;  // by position
};

TEST(DraftFeatures, AreTheResidualStreamAsItIsRecorded) {
  for (const char* name : {"qwen3_moe", "gemma4_text", "qwen3_next", "glm4_moe_lite"}) {
    SCOPED_TRACE(name);
    EngineOptions options = tree_options();
    options.feature_layers = {2, 0, 1, 2};
    options.hidden_state_layers = {0, 1, 2};
    const auto engine = Engine::load(oracle_folder(name), options);
    EXPECT_EQ(engine->options().feature_layers, (std::vector<int>{0, 1, 2}));
    const AskedAnswer asked = ask(*engine, "drawn", all_samplers()[1].second);
    const ToldAnswer plain = make_answer(*engine, asked);
    Observer observer(plain.result.tokens, engine->summary().vocab_size);
    observer.layers = {0, 1, 2};
    const auto hidden = static_cast<size_t>(engine->summary().hidden_size);
    observer.width = 3 * hidden;
    const ToldAnswer found = make_answer(*engine, asked, {.drafter = &observer, .max_drafts = 5});
    expect_same_answer(plain, found);
    EXPECT_GT(found.result.speculation.num_accepted_draft_tokens, 10);
    ASSERT_GT(observer.seen.size(), asked.prompt.size() + 50);
    for (size_t position = 0; position < observer.seen.size(); ++position) {
      const TokenRecord& record = plain.records.at(static_cast<int64_t>(position));
      ASSERT_EQ(record.hidden_states.size(), 3U);
      for (size_t layer = 0; layer < 3; ++layer) {
        const auto part =
            std::span<const float>(observer.seen[position]).subspan(layer * hidden, hidden);
        EXPECT_TRUE(std::ranges::equal(part, record.hidden_states[layer].values))
            << "position " << position << ", layer " << layer;
      }
    }
  }
}

TEST(DraftFeatures, OfAnEngineThatShowsNoneEndSpeculation) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), tree_options());
  const AskedAnswer asked = ask(*engine, "greedy", all_samplers()[0].second);
  const ToldAnswer plain = make_answer(*engine, asked);
  Observer observer(plain.result.tokens, engine->summary().vocab_size);
  observer.layers = {1};
  const ToldAnswer found = make_answer(*engine, asked, {.drafter = &observer});
  expect_same_answer(plain, found);
  EXPECT_NE(found.result.speculation.problem.find("feature_layers"), std::string::npos);
  EngineOptions options = tree_options();
  options.feature_layers = {99};
  expect_error(ErrorKind::kInvalidArgument, "feature_layers",
               [&] { Engine::load(oracle_folder("qwen3_moe"), options); });
}

}  // namespace
}  // namespace vitrine::testing
