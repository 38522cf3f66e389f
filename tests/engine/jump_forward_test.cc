// SPDX-License-Identifier: Apache-2.0
// What a constraint forces, fed in one chunk: the same answers and records as token by token where
// each text has one spelling, the tokenizer's own spelling where it has several.
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/engine/federation_fixture.h"
#include "tests/support/in_sequence.h"
#include "vitrine/audit.h"
#include "vitrine/constrain.h"

namespace vitrine::testing {
namespace {

constexpr int kVocabulary = 256;
constexpr const char* kPattern = "(ab|cd){1,4} identification=[0-9]{2}; the end";

/// Ids 2 to 96: ASCII's printable characters, then what `merges` make.
Tokenizer ascii_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges) {
  nlohmann::json json;
  const auto spelt = [](std::string text) {
    for (size_t at; (at = text.find(' ')) != std::string::npos;) text.replace(at, 1, "\u0120");
    return text;
  };
  nlohmann::json vocabulary = {{"<s>", 0}, {"</s>", 1}};
  for (int byte = 0x20; byte < 0x7f; ++byte) {
    vocabulary[spelt(std::string(1, static_cast<char>(byte)))] = byte - 0x1e;
  }
  auto pairs = nlohmann::json::array();
  int next = 97;
  for (const auto& [first, second] : merges) {
    vocabulary[spelt(first + second)] = next++;
    pairs.push_back({spelt(first), spelt(second)});
  }
  json["version"] = "1.0";
  json["added_tokens"] = nlohmann::json::array();
  for (const auto& [id, name] : {std::pair(0, "<s>"), {1, "</s>"}}) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", name},
                                    {"special", true},
                                    {"normalized", false},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false}});
  }
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  json["post_processor"] = nullptr;
  json["decoder"] = {{"type", "ByteLevel"}};
  json["model"] = {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", pairs}};
  return Tokenizer::from_json(json.dump(), "test");
}

std::vector<std::pair<std::string, std::string>> word_merges() {
  return {{"i", "d"},       {"e", "n"},  {"t", "i"},  {"id", "en"}, {"iden", "ti"}, {"n", "a"},
          {"s", "t"},       {"e", "r"},  {"u", "st"}, {"c", "ust"}, {"o", "m"},     {"cust", "om"},
          {"custom", "er"}, {"\"", ":"}, {" ", "\""}, {"na", "m"},  {"nam", "e"}};
}

TokenTable table_of(const Tokenizer& tokenizer) {
  std::vector<std::string> bytes(kVocabulary);
  for (int32_t id = 2; id < tokenizer.vocab_size(); ++id) {
    bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return TokenTable::from_bytes(std::move(bytes), {1});
}

std::string text_of(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t id : tokens) {
    if (id > 1) text += tokenizer.token_bytes(id);
  }
  return text;
}

EngineOptions recorded(int step_tokens = 64, int rows = 16) {
  EngineOptions options = test_options(2);
  options.max_context = 160;
  options.max_step_tokens = step_tokens;
  options.max_logit_rows = rows;
  options.audit_mode = AuditMode::kDeferred;
  options.keep_logits = true;
  return options;
}

struct Answer {
  GenerateResult result;
  std::vector<TokenRecord> records;  // of generated tokens
};

template <typename Model>
Answer answer(Model& model, const Grammar& grammar, std::span<const int32_t> prompt,
              GenerateOptions options, const Tokenizer* jump) {
  VectorSink sink;
  model.set_audit_sink(&sink);
  const auto constraint = grammar.start();
  options.constraint = constraint.get();
  options.jump_forward = jump;
  Answer out;
  out.result = generate(model, prompt, options);
  model.set_audit_sink(nullptr);
  for (TokenRecord& record : sink.take()) {
    if (record.has_prediction && record.prediction.generated) out.records.push_back(record);
  }
  return out;
}

void expect_same(const Answer& jumped, const Answer& plain) {
  ASSERT_EQ(jumped.result.tokens, plain.result.tokens);
  EXPECT_EQ(jumped.result.reason, plain.result.reason);
  EXPECT_EQ(jumped.result.is_complete, plain.result.is_complete);
  ASSERT_EQ(jumped.result.logprobs.size(), plain.result.logprobs.size());
  for (size_t i = 0; i < plain.result.logprobs.size(); ++i) {
    EXPECT_EQ(jumped.result.logprobs[i].token, plain.result.logprobs[i].token);
    EXPECT_EQ(jumped.result.logprobs[i].logprob, plain.result.logprobs[i].logprob);
    EXPECT_EQ(jumped.result.logprobs[i].best, plain.result.logprobs[i].best);
  }
  ASSERT_EQ(jumped.records.size(), plain.records.size());
  ASSERT_EQ(jumped.records.size(), plain.result.tokens.size());
  for (size_t i = 0; i < plain.records.size(); ++i) {
    const PredictionRecord &one = jumped.records[i].prediction,
                           &other = plain.records[i].prediction;
    EXPECT_EQ(jumped.records[i].position, plain.records[i].position);
    EXPECT_EQ(one.token, other.token);
    EXPECT_EQ(one.logprob, other.logprob);
    EXPECT_EQ(one.logits_digest, other.logits_digest);
    EXPECT_EQ(one.constraint.allowed, other.constraint.allowed);
    EXPECT_NEAR(one.constraint.removed, other.constraint.removed, 1e-5);
    EXPECT_EQ(one.constraint.first_ruled_out, other.constraint.first_ruled_out);
    EXPECT_EQ(one.sampled.candidates, other.sampled.candidates);
  }
  EXPECT_EQ(jumped.result.constraint.masks + jumped.result.constraint.jumped,
            plain.result.constraint.masks);
  EXPECT_EQ(jumped.result.constraint.forced + jumped.result.constraint.jumped,
            plain.result.constraint.forced);
}

GenerateOptions drawn(float temperature, int room) {
  GenerateOptions options;
  options.max_new_tokens = room;
  options.logprobs = 2;
  options.sampler = {
      .temperature = temperature, .seed = 5, .repetition_penalty = 1.4F, .frequency_penalty = 0.3F};
  return options;
}

TEST(JumpForward, WhereEachTextHasOneSpellingItIsTheSameAnswer) {
  const Tokenizer tokenizer = ascii_tokenizer({});
  const Grammar grammar = Grammar::regex(table_of(tokenizer), kPattern);
  const std::vector<int32_t> prompt = prompt_ids(9, kVocabulary);
  const auto plain_engine = Engine::load(oracle_folder("qwen3_moe"), recorded());
  for (const auto& [step_tokens, rows] : {std::pair(64, 16), {64, 1}, {3, 16}, {16, 5}}) {
    const auto engine = Engine::load(oracle_folder("qwen3_moe"), recorded(step_tokens, rows));
    for (const float temperature : {0.0F, 1.5F}) {
      for (const int room : {29, 30, 33, 60}) {
        const GenerateOptions options = drawn(temperature, room);
        const Answer plain = answer(*plain_engine, grammar, prompt, options, nullptr);
        const Answer jumped = answer(*engine, grammar, prompt, options, &tokenizer);
        EXPECT_GT(jumped.result.constraint.jumped, 15);
        EXPECT_EQ(plain.result.constraint.jumped, 0);
        EXPECT_TRUE(jumped.result.is_complete);
        expect_same(jumped, plain);
      }
    }
  }
}

/// How many passes an answer to `prompt` takes under a constraint that leaves one text.
uint64_t passes_of_forced_text(Engine& engine, const Tokenizer& tokenizer) {
  const Grammar grammar = Grammar::regex(table_of(tokenizer), "[ab] and then the rest");
  const auto constraint = grammar.start();
  GenerateOptions options;
  options.constraint = constraint.get();
  options.jump_forward = &tokenizer;
  const uint64_t before = engine.readback_count();
  EXPECT_EQ(generate(engine, prompt_ids(9, kVocabulary), options).tokens.size(), 19U);
  return engine.readback_count() - before;
}

// A host's options as they come: the recorder is there, and nobody listens.
TEST(JumpForward, NobodyListensAndForcedTextIsOneStep) {
  const Tokenizer tokenizer = ascii_tokenizer({});
  EngineOptions options;
  options.max_context = 64;
  options.threads = 1;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  ASSERT_NE(engine->audit_layout().mode, AuditMode::kNone);
  const uint64_t passes = passes_of_forced_text(*engine, tokenizer);
  EXPECT_LE(passes, 4U);
}

TEST(JumpForward, WhoListensLaterHasEveryRow) {
  const Tokenizer tokenizer = ascii_tokenizer({});
  EngineOptions options = recorded();
  options.audit_mode = AuditMode::kNone;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  engine->set_audit_mode(AuditMode::kDeferred);
  VectorSink sink;
  engine->set_audit_sink(&sink);
  const uint64_t passes = passes_of_forced_text(*engine, tokenizer);
  EXPECT_LE(passes, 4U);  // with room for 16 rows in one
  size_t recorded_rows = 0;
  for (const TokenRecord& record : sink.take()) {
    recorded_rows += record.has_prediction && record.prediction.generated ? 1 : 0;
  }
  EXPECT_EQ(recorded_rows, 19U);
}

TEST(JumpForward, AFederationJumpsToo) {
  TemporaryFolder folder;
  FederationSpec spec;
  spec.path = folder / "two.json";
  spec.specialists = {{"moe", oracle_folder("qwen3_moe"), ""},
                      {"dense", oracle_folder("llama"), ""}};
  spec.combiner.weights = {0.4, 0.6};
  const auto federation = Federation::load(spec, recorded());
  const Tokenizer tokenizer = ascii_tokenizer({});
  const Grammar grammar = Grammar::regex(table_of(tokenizer), kPattern);
  const std::vector<int32_t> prompt = prompt_ids(9, kVocabulary);
  for (const int room : {29, 45}) {
    const GenerateOptions options = drawn(1.2F, room);
    const Answer jumped = answer(*federation, grammar, prompt, options, &tokenizer);
    EXPECT_GT(jumped.result.constraint.jumped, 15);
    expect_same(jumped, answer(*federation, grammar, prompt, options, nullptr));
  }
}

TEST(JumpForward, KeysAreSpeltAsTheTokenizerDoes) {
  const Tokenizer tokenizer = ascii_tokenizer(word_merges());
  SchemaOptions schema;
  schema.whitespace = JsonWhitespace::kCompact;
  const Grammar grammar = Grammar::json_schema(
      table_of(tokenizer),
      R"({"type":"object","required":["identified_customer_name"],"additionalProperties":false,
          "properties":{"identified_customer_name":{"enum":["customer one","customer two"]}}})",
      schema);
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), recorded());
  const std::vector<int32_t> prompt = prompt_ids(9, kVocabulary);
  int64_t jumped_in_all = 0;
  for (int room = 12; room < 60; ++room) {
    const GenerateOptions options = drawn(1.0F, room);
    Answer jumped;
    try {
      jumped = answer(*engine, grammar, prompt, options, &tokenizer);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("room for"), std::string::npos) << error.what();
      continue;
    }
    EXPECT_TRUE(jumped.result.is_complete);
    EXPECT_LE(jumped.result.tokens.size(), static_cast<size_t>(room));
    const std::string text = text_of(tokenizer, jumped.result.tokens);
    const std::string value = nlohmann::json::parse(text).at("identified_customer_name");
    EXPECT_TRUE(value == "customer one" || value == "customer two") << text;
    jumped_in_all += jumped.result.constraint.jumped;
    if (room < 40) continue;
    EXPECT_GT(jumped.result.constraint.jumped, 5);
    // From the second token on, where the first jump begins at the latest.
    const std::vector<int32_t> canonical = tokenizer.encode(text, false);
    const auto key = std::find(canonical.begin(), canonical.end(), tokenizer.token_id("customer"));
    const auto mine = std::find(jumped.result.tokens.begin(), jumped.result.tokens.end(), *key);
    ASSERT_NE(mine, jumped.result.tokens.end());
    EXPECT_TRUE(std::equal(key, key + 2, mine));
    // What is recorded is what the same tokens give one by one.
    const SequenceId sequence = engine->create_sequence();
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), jumped.result.tokens.begin(), jumped.result.tokens.end());
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      StepInput input;
      input.sequence = sequence;
      input.tokens = {&all[i], 1};
      input.next_token = all[i + 1];
      const StepOutput output = engine->step({&input, 1})[0];
      if (i + 1 < prompt.size()) continue;
      const TokenLogprobs& own = jumped.result.logprobs[i + 1 - prompt.size()];
      const double logprob =
          double{output.scores[static_cast<size_t>(all[i + 1])]} - exact_log_sum_exp(output.scores);
      EXPECT_EQ(own.token, all[i + 1]);
      EXPECT_NEAR(own.logprob, logprob, 1e-9);
    }
    engine->release(sequence);
  }
  EXPECT_GT(jumped_in_all, 100);
}

TEST(JumpForward, BannedTokensEndIt) {
  const Tokenizer tokenizer = ascii_tokenizer(word_merges());
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), recorded());
  const std::vector<int32_t> prompt = prompt_ids(9, kVocabulary);
  const int32_t iden = tokenizer.token_id("identi"), name = tokenizer.token_id("name");
  ASSERT_GT(iden, 1);
  GenerateOptions options = drawn(1.0F, 60);
  options.sampler.ban = {{iden}, {tokenizer.token_id("_"), name}};
  const Grammar grammar = Grammar::regex(table_of(tokenizer).without(banned_ids(options.sampler)),
                                         "identified_x_name=(ab|cd)");
  const Answer jumped = answer(*engine, grammar, prompt, options, &tokenizer);
  const auto& tokens = jumped.result.tokens;
  EXPECT_TRUE(jumped.result.is_complete);
  EXPECT_EQ(std::ranges::find(tokens, iden), tokens.end());
  for (size_t i = 1; i < tokens.size(); ++i) {
    EXPECT_FALSE(tokens[i] == name && tokens[i - 1] == tokenizer.token_id("_"));
  }
}

TEST(JumpForward, ABannedSequenceMayBeginInIt) {
  const Tokenizer tokenizer = ascii_tokenizer({});
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), recorded());
  const std::vector<int32_t> prompt = prompt_ids(9, kVocabulary);
  const Grammar grammar = Grammar::regex(table_of(tokenizer), "(ab|cd) identification (x|y)");
  GenerateOptions options = drawn(1.0F, 60);
  for (const char* end : {"x", "y", "xy"}) {
    options.sampler.ban.clear();
    for (const char byte : std::string(end)) {
      options.sampler.ban.push_back(tokenizer.encode(std::string("on ") + byte, false));
    }
    const GenerateResult result = answer(*engine, grammar, prompt, options, &tokenizer).result;
    EXPECT_GT(result.constraint.jumped, 10);
    const bool may_end = std::string(end).size() == 1;
    EXPECT_EQ(result.reason, may_end ? StopReason::kComplete : StopReason::kDeadlock);
    EXPECT_EQ(result.constraint.deadlocks, may_end ? 0 : 1);
    const std::string text = text_of(tokenizer, result.tokens);
    EXPECT_EQ(text.back(), !may_end ? ' ' : *end == 'x' ? 'y' : 'x') << text;
  }
}

TEST(JumpForward, StopsAndRetriesInTheMiddle) {
  const Tokenizer tokenizer = ascii_tokenizer({});
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), recorded());
  const std::vector<int32_t> prompt = prompt_ids(9, kVocabulary);
  const Grammar grammar = Grammar::regex(table_of(tokenizer), kPattern);
  GenerateOptions options = drawn(1.5F, 60);
  options.jump_forward = &tokenizer;
  for (size_t most = 1; most < 35; ++most) {
    const SequenceId sequence = engine->create_sequence();
    const auto constraint = grammar.start();
    options.constraint = constraint.get();
    std::vector<int32_t> seen;
    const GenerateResult result =
        generate(*engine, prompt, in_sequence(sequence, options), [&](const TokenEvent& event) {
          EXPECT_EQ(event.position, static_cast<int64_t>(prompt.size() + seen.size()));
          seen.push_back(event.token);
          return seen.size() < most;
        });
    EXPECT_EQ(result.tokens, seen);
    EXPECT_EQ(engine->length(sequence), static_cast<int64_t>(prompt.size() + seen.size()) - 1);
    if (result.reason == StopReason::kCancelled) {
      EXPECT_EQ(result.is_complete, text_of(tokenizer, seen).ends_with("the end"));
      EXPECT_EQ(result.logprobs.size(), seen.size());
    }
    engine->release(sequence);
  }
  // Again from the start, each time under the mask, jumps included.
  int asked = 0;
  options.validator_retries = 3;
  options.validator = [&asked](std::span<const int32_t>) { return ++asked == 3; };
  const Answer jumped = answer(*engine, grammar, prompt, options, &tokenizer);
  EXPECT_EQ(jumped.result.constraint.rejected_answers, 2);
  asked = 0;
  const Answer plain = answer(*engine, grammar, prompt, options, nullptr);
  EXPECT_EQ(jumped.result.tokens, plain.result.tokens);
  ASSERT_EQ(jumped.records.size(), plain.records.size());
  for (size_t i = 0; i < plain.records.size(); ++i) {
    EXPECT_EQ(jumped.records[i].prediction.logits_digest,
              plain.records[i].prediction.logits_digest);
    EXPECT_EQ(jumped.records[i].prediction.constraint.attempt,
              plain.records[i].prediction.constraint.attempt);
  }
}

TEST(JumpForward, AnAnswerThatIsForcedWholeIsTakenToItsEnd) {
  const Tokenizer tokenizer = ascii_tokenizer(word_merges());
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), recorded());
  const Grammar grammar = Grammar::regex(table_of(tokenizer), "customer_name");
  GenerateOptions options = drawn(1.0F, 13);
  const Answer jumped = answer(*engine, grammar, prompt_ids(9, kVocabulary), options, &tokenizer);
  EXPECT_EQ(jumped.result.tokens, tokenizer.encode("customer_name", false));
  EXPECT_EQ(jumped.result.constraint.jumped, static_cast<int64_t>(jumped.result.tokens.size()));
  EXPECT_EQ(jumped.result.constraint.masks, 0);
  EXPECT_EQ(jumped.result.reason, StopReason::kComplete);
  EXPECT_EQ(jumped.records.size(), jumped.result.tokens.size());
}

TEST(JumpForward, AStepThatSaysMoreIsForcedThanItBringsIsRefused) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), recorded());
  const std::vector<int32_t> ids = {3, 4, 5};
  StepInput input;
  input.sequence = engine->create_sequence();
  input.tokens = ids;
  for (const auto& [next, most] : {std::pair(-1, 2), {7, 3}}) {
    input.next_token = next;
    for (const int count : {-1, most + 1}) {
      input.num_forced = count;
      const Error error = error_of([&] { engine->step({&input, 1}); });
      EXPECT_TRUE(is_one_line_with(error, {"num_forced", "expected 0 to"})) << error.what();
    }
  }
  EXPECT_EQ(engine->length(input.sequence), 0);
}

}  // namespace
}  // namespace vitrine::testing
