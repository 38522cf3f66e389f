// SPDX-License-Identifier: Apache-2.0
// The table of what guesses must not change: every sampler stage, under every kind of constraint,
// guessed as chains and as trees by a drafter that is right never, often or always.
#include <filesystem>

#include "tests/engine/tree_oracle.h"
#include "tests/support/long.h"

namespace vitrine::testing {
namespace {

constexpr const char* kSchema =
    R"({"type":"object","properties":{"id":{"type":"integer"},"kind":{"enum":["one","other"]}},)"
    R"("required":["id","kind"],"additionalProperties":false})";
constexpr const char* kTags =
    R"({"at_least_one":true,"triggers":["<n>"],"tags":[{"begin":"<n>","end":"</n>",)"
    R"("schema":{"type":"integer"}}]})";

std::vector<std::pair<std::string, SamplerOptions>> every_sampler() {
  std::vector<std::pair<std::string, SamplerOptions>> all;
  const auto add = [&](const char* name, auto&& change) {
    SamplerOptions options;
    options.seed = 5 + all.size();
    change(options);
    all.emplace_back(name, options);
  };
  add("greedy", [](SamplerOptions& o) { o.temperature = 0; });
  add("temperature", [](SamplerOptions& o) { o.temperature = 1.2F; });
  add("top-k", [](SamplerOptions& o) { o.top_k = 12; });
  add("top-p", [](SamplerOptions& o) { o.top_p = 0.8F; });
  add("min-p", [](SamplerOptions& o) { o.min_p = 0.05F; });
  add("typical", [](SamplerOptions& o) { o.typical_p = 0.7F; });
  add("top-n-sigma", [](SamplerOptions& o) { o.top_n_sigma = 1.5F; });
  add("xtc", [](SamplerOptions& o) { o.xtc_probability = 0.6F, o.xtc_threshold = 0.02F; });
  add("dynamic temperature", [](SamplerOptions& o) {
    o.dynamic_temperature = 0.5F, o.dynamic_temperature_exponent = 1.3F;
  });
  add("mirostat", [](SamplerOptions& o) { o.mirostat = 2, o.mirostat_tau = 3; });
  add("repetition penalty",
      [](SamplerOptions& o) { o.repetition_penalty = 1.4F, o.temperature = 0; });
  add("frequency and presence", [](SamplerOptions& o) {
    o.frequency_penalty = 0.4F, o.presence_penalty = 0.3F, o.penalty_window = 11;
  });
  add("dry", [](SamplerOptions& o) { o.dry_multiplier = 1.1F, o.dry_allowed_length = 1; });
  add("bias", [](SamplerOptions& o) { o.logit_bias = {{'1', 1.5F}, {'a', -2.0F}}; });
  add("ban", [](SamplerOptions& o) { o.ban = {{'7'}, {'1', '2'}, {'a', 'b'}}; });
  add("own order", [](SamplerOptions& o) {
    o.repetition_penalty = 1.2F, o.top_k = 20, o.top_p = 0.9F;
    o.samplers = {"top_k", "penalties", "temperature", "top_p"};
  });
  return all;
}

/// Ids below 256 stand for bytes.
TokenTable byte_table(const Engine& engine) {
  std::vector<std::string> bytes(static_cast<size_t>(engine.summary().vocab_size));
  for (size_t byte = 0; byte < std::min<size_t>(256, bytes.size()); ++byte) {
    bytes[byte] = std::string(1, static_cast<char>(byte));
  }
  for (const int32_t id : engine.summary().eos_token_ids) bytes[static_cast<size_t>(id)] = "";
  return TokenTable::from_bytes(std::move(bytes), engine.summary().eos_token_ids);
}

/// None, and one of each kind.
std::vector<std::pair<std::string, std::optional<Grammar>>> every_constraint(
    const TokenTable& table) {
  return {
      {"free", std::nullopt},
      {"schema", Grammar::json_schema(table, kSchema, {.whitespace = JsonWhitespace::kOneLine})},
      {"object", Grammar::json_schema(table, R"({"type":"object"})")},
      {"regex", Grammar::regex(table, "[a-f]{4,9}(xyz|xx)+[0-9]{3,12}")},
      {"gbnf", Grammar::gbnf(table, "root ::= word (\" \" word){2,6} \".\"\nword ::= [a-z]{1,4}")},
      {"lark", Grammar::lark(table, "start: sum (\",\" sum)*\nsum: N (\"+\" N)*\nN: /[0-9]{1,3}/")},
      {"tags", Grammar::tags(table, kTags)},
      {"choice", Grammar::choices(table, {"the first one", "the second of three", "another"})},
  };
}

/// Answers that go over borders of blocks, and those that do not end before to the context's end.
/// `parts`: of the runs of a pair of sampler and constraint, one of so many; `every`: of these
/// pairs, one of so many.
void check_table(const std::string& path, int parts, size_t every = 1) {
  SCOPED_TRACE(path);
  EngineOptions options = test_options(2, 16);
  options.max_context = 44;
  options.max_sequences = 2;
  options.max_step_tokens = 32;
  options.max_logit_rows = 16;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  const auto engine = Engine::load(path, options);
  const auto free = engine->kv_blocks().first;
  const auto constraints = every_constraint(byte_table(*engine));
  GuessedRuns unled, led;
  std::map<StopReason, int> reasons;
  int cell = 0;
  size_t row = 0;
  for (const auto& [name, sampler] : every_sampler()) {
    ++row;
    for (size_t column = row % every; column < constraints.size(); column += every) {
      const auto& [kind, grammar] = constraints[column];
      AskedAnswer asked;
      asked.name = name;
      asked.name.append(", ").append(kind);
      asked.prompt = prompt_ids(11, 256);
      asked.grammar = grammar;
      asked.options.sampler = sampler;
      asked.options.max_new_tokens = cell % 3 == 0 ? 23 : 60;
      asked.options.logprobs = 2;
      if (!grammar) asked.options.ignore_end_of_text = true;
      GuessedRuns& runs = grammar ? led : unled;
      const int part = cell++ + static_cast<int>(row);
      ++reasons[expect_same_in_any_shape(*engine, asked, runs, parts, part)];
    }
  }
  EXPECT_EQ(engine->kv_blocks().first, free);
  EXPECT_GT(reasons[StopReason::kContextFull], 0);
  EXPECT_GT(reasons[StopReason::kLength], 0);
  for (const GuessedRuns& runs : {unled, led}) {
    EXPECT_GT(runs.accepted, runs.passes / 4);
    EXPECT_GT(runs.trees, runs.passes / 50);
  }
}

class OracleDrafterTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OracleDrafterTest, ChangesNothingWithAnySamplerUnderAnyConstraint) {
  check_table(oracle_folder(GetParam()), testing_support::sample_or_all(4, 1));
}

INSTANTIATE_TEST_SUITE_P(Models, OracleDrafterTest,
                         ::testing::Values("qwen3_moe", "llama", "gpt_oss", "glm4_moe_lite"),
                         [](const auto& info) { return info.param; });

TEST(OracleDrafter, ChangesNothingOfTheShippedModel) { check_table(shipped_model(), 4); }

/// A file of bench/fetch_models.py's, where it is there.
void check_published(const char* name) {
  const char* const folder = std::getenv("VITRINE_MODELS");
  const char* const home = std::getenv("HOME");
  const std::filesystem::path models =
      folder != nullptr
          ? folder
          : std::filesystem::path(home != nullptr ? home : "") / ".cache/vitrine/models";
  if (!std::filesystem::exists(models / name)) {
    GTEST_SKIP() << models / name << " is not there (bench/fetch_models.py fetches it)";
  }
  check_table((models / name).string(), 8, 8);
}

TEST(OracleDrafter, ChangesNothingOfSmolLm2) { check_published("SmolLM2-135M-Instruct.Q4_1.gguf"); }

TEST(OracleDrafter, ChangesNothingOfQwenCoder) {
  if (!testing_support::is_long_run()) GTEST_SKIP() << "a long run has it";
  check_published("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
}

}  // namespace
}  // namespace vitrine::testing
