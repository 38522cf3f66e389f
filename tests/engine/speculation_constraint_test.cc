// SPDX-License-Identifier: Apache-2.0
// Tokens that are guessed ahead under constraints: masks, limits, forced text, retries.
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "tests/engine/tree_oracle.h"
#include "vitrine/model.h"

namespace vitrine::testing {
namespace {

class SpeculationConstraintTest : public ::testing::Test {
 protected:
  static EngineOptions options_of(int context) {
    EngineOptions options = test_options(2, 16);
    options.max_context = context;
    options.max_step_tokens = 32;
    options.max_logit_rows = 16;
    options.audit_mode = AuditMode::kDeferred;
    options.audit_level = AuditLevel::kFull;
    return options;
  }
  static TokenTable table_of(const Engine& engine) {
    std::vector<std::string> bytes(static_cast<size_t>(engine.summary().vocab_size));
    for (size_t byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
    for (const int32_t id : engine.summary().eos_token_ids) bytes[static_cast<size_t>(id)] = "";
    return TokenTable::from_bytes(std::move(bytes), engine.summary().eos_token_ids);
  }
  static AskedAnswer ask(const Grammar& grammar, const std::string& name, int max_new_tokens) {
    AskedAnswer asked;
    asked.name = name;
    asked.prompt = prompt_ids(12, 256);
    asked.grammar = grammar;
    asked.options.max_new_tokens = max_new_tokens;
    return asked;
  }
};

TEST_F(SpeculationConstraintTest, ChangesNothingUnderAnyKind) {
  for (const std::string& folder :
       {oracle_folder("qwen3_moe"), oracle_folder("llama"), shipped_model()}) {
    SCOPED_TRACE(folder);
    const auto engine = Engine::load(folder, options_of(96));
    const TokenTable table = table_of(*engine);
    const char* schema =
        R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},"size":{"type":"integer"},)"
        R"("kind":{"enum":["one","other"]}},"required":["name","size","kind"],"additionalProperties":false})";
    const std::pair<const char*, Grammar> grammars[] = {
        {"regex", Grammar::regex(table, "[a-f]{4,30}(xyz)+[0-9]{3}")},
        {"schema", Grammar::json_schema(table, schema)},
        {"gbnf",
         Grammar::gbnf(table, "root ::= word (\" \" word){2,6} \".\"\nword ::= [a-z]{1,5}")},
    };
    int64_t accepted = 0;
    for (const auto& [kind, grammar] : grammars) {
      for (const auto& [name, sampler] : all_samplers()) {
        AskedAnswer asked = ask(grammar, std::string(kind) + " " + name, 70);
        asked.options.sampler = sampler;
        asked.options.logprobs = 1;
        accepted += expect_same_however_guessed(*engine, asked, {6});
      }
    }
    EXPECT_GT(accepted, 500);
  }
}

TEST_F(SpeculationConstraintTest, KeepsToTheLimitAndTheContext) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options_of(40));
  const TokenTable table = table_of(*engine);
  const Grammar grammar = Grammar::regex(table, "([a-f]{2}-)*[0-9]{6}");
  GuessedRuns runs;
  for (const int count : {6, 7, 9, 14, 20, 60}) {
    for (const size_t which : {0U, 1U, 5U}) {
      AskedAnswer asked = ask(grammar, "limit " + std::to_string(count), count);
      asked.options.sampler = all_samplers()[which].second;
      expect_same_however_guessed(*engine, asked);
      expect_same_in_any_shape(*engine, asked, runs);
    }
  }
  EXPECT_GT(runs.trees, 10);
}

TEST_F(SpeculationConstraintTest, FollowsAttemptsThatAreMadeAgain) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options_of(96));
  const TokenTable table = table_of(*engine);
  AskedAnswer rejected = ask(Grammar::regex(table, "[a-f]{4,30}(xyz)+"), "validator", 40);
  rejected.options.sampler = all_samplers()[1].second;
  rejected.options.validator_retries = 3;
  rejected.options.validator = [](std::span<const int32_t> tokens) { return tokens.size() > 39; };
  expect_same_however_guessed(*engine, rejected);
  GuessedRuns runs;
  expect_same_in_any_shape(*engine, rejected, runs);
  EXPECT_GT(runs.trees, 5);
  EXPECT_GT(make_answer(*engine, rejected).result.constraint.rejected_answers, 0);

  AskedAnswer stuck = ask(Grammar::regex(table, "[a-f]{5}[0-9]{9}"), "deadlock", 40);
  stuck.options.sampler = all_samplers()[1].second;
  for (int32_t id = '0'; id <= '9'; ++id) stuck.options.sampler.ban.push_back({'a', id});
  for (int32_t id = '0'; id <= '9'; ++id) {
    for (int32_t letter = 'b'; letter <= 'f'; ++letter) {
      stuck.options.sampler.ban.push_back({letter, id});
    }
  }
  stuck.options.deadlock_retries = 2;
  const ToldAnswer plain = make_answer(*engine, stuck);
  EXPECT_GT(plain.result.constraint.deadlocks, 0);
  OracleDrafter oracle(plain.result.tokens, 0.7, engine->summary().vocab_size);
  expect_same_answer(plain, make_answer(*engine, stuck, {.drafter = &oracle}));
}

/// Guesses one tree, whatever it is asked.
class OneTree final : public OracleDrafter {
 public:
  OneTree(std::vector<std::pair<int32_t, int32_t>> nodes, int32_t vocab)
      : OracleDrafter({}, 0, vocab), nodes_(std::move(nodes)) {}
  void propose(std::span<DraftProposal> proposals) override {
    DraftProposal& proposal = proposals[0];
    ASSERT_EQ(proposal.parents.size(), proposal.tokens.size());
    for (const auto& [token, parent] : nodes_) {
      if (proposal.count == std::ssize(proposal.tokens)) return;
      proposal.tokens[static_cast<size_t>(proposal.count)] = token;
      proposal.parents[static_cast<size_t>(proposal.count++)] = parent;
    }
  }

 private:
  const std::vector<std::pair<int32_t, int32_t>> nodes_;
};

/// Keeps what was guessed.
class DraftsSink final : public VectorSink {
 public:
  void on_drafts(const DraftedPass& drafts) override { all.push_back(drafts); }
  std::vector<DraftedPass> all;
};

TEST_F(SpeculationConstraintTest, LeadsEachPathOfATreeByItself) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options_of(96));
  const TokenTable table = table_of(*engine);
  const Grammar grammar = Grammar::choices(table, {"pabc1", "pabd22", "pxyz333", "pxa"});
  AskedAnswer asked = ask(grammar, "tree", 20);
  const ToldAnswer plain = make_answer(*engine, asked);
  // In any order: "abc1", "abd2", "xy", "xa"; refused: "q" with "b" behind it, "xz", "abcd".
  OneTree tree({{'x', -1},
                {'a', -1},
                {'q', -1},
                {'b', 1},
                {'y', 0},
                {'b', 2},
                {'z', 0},
                {'d', 3},
                {'c', 3},
                {'a', 0},
                {'d', 8},
                {'1', 8},
                {'2', 7}},
               engine->summary().vocab_size);
  DraftsSink sink;
  engine->set_audit_sink(&sink);
  const auto constraint = grammar.start();
  asked.options.constraint = constraint.get();
  asked.options.speculation = {.drafter = &tree, .max_drafts = 15, .max_depth = 5};
  const GenerateResult found = generate(*engine, asked.prompt, asked.options);
  engine->set_audit_sink(nullptr);
  EXPECT_EQ(found.speculation.problem, "");
  EXPECT_EQ(found.tokens, plain.result.tokens);
  ASSERT_FALSE(sink.all.empty());
  // "1" and the "a" of "xa" end an answer, so that nothing is chosen behind them.
  // They are told path by path.
  const std::vector<int32_t> tokens = {'x', 'y', 'a', 'b', 'd', '2', 'c'};
  EXPECT_EQ(sink.all[0].tokens, tokens);
  EXPECT_EQ(sink.all[0].parents, (std::vector<int32_t>{-1, 0, -1, 2, 3, 4, 3}));
  EXPECT_GE(found.speculation.num_accepted_draft_tokens, 1);
}

TEST_F(SpeculationConstraintTest, StandsBesideForcedText) {
  const auto engine = Engine::load(shipped_model(), options_of(120));
  const Checkpoint checkpoint = Checkpoint::open(shipped_model());
  const ModelConfig config = parse_model_config(checkpoint);
  const Tokenizer tokenizer = open_tokenizer(checkpoint, config);
  std::vector<std::string> bytes(static_cast<size_t>(engine->summary().vocab_size));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  const TokenTable table = TokenTable::from_bytes(bytes, engine->summary().eos_token_ids);
  const Grammar grammar = Grammar::regex(
      table, "(The (cat|dog|house) said to the (king|bird), [a-z ]{4,12}\\. ){2,3}The end of it");
  GuessedRuns runs;
  for (const auto& [name, sampler] : all_samplers()) {
    AskedAnswer asked = ask(grammar, "jump " + name, 90);
    asked.prompt = tokenizer.encode("Once upon a time", true);
    asked.options.sampler = sampler;
    asked.options.jump_forward = &tokenizer;
    asked.options.logprobs = 1;
    EXPECT_GT(expect_same_however_guessed(*engine, asked, {2, 8}), 0);
    expect_same_in_any_shape(*engine, asked, runs);
    EXPECT_GT(make_answer(*engine, asked).result.constraint.jumped, 0);
  }
  EXPECT_GT(runs.trees, 10);
}

}  // namespace
}  // namespace vitrine::testing
