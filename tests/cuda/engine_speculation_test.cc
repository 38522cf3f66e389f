// SPDX-License-Identifier: Apache-2.0
// Answers that are guessed ahead on `--device cuda --kernels fused`, emulated: they are the
// device's own answers without guesses, and each pass is one readback.
#include "tests/cuda/emulated_counts.h"
#include "tests/cuda/engine_options_on.h"
#include "tests/engine/speculated_answer.h"
#include "vitrine/drafters.h"
#include "vitrine/federation_engine.h"
#include "vitrine/speculate.h"

namespace vitrine::testing {
namespace {

EngineOptions guessing_options(int max_context = 96) {
  EngineOptions options = options_on(true);
  options.max_context = max_context;
  options.keep_logits = true;  // for log-probabilities
  return options;
}

AskedAnswer ask(const Stepper& stepper, const std::string& name, const SamplerOptions& sampler,
                int prompt, int max_new_tokens) {
  AskedAnswer asked;
  asked.name = name;
  asked.prompt = prompt_ids(prompt, stepper.summary().vocab_size);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = max_new_tokens;
  asked.options.ignore_end_of_text = true;
  return asked;
}

SamplerOptions sampler_named(const std::string& name) {
  const auto all = all_samplers();
  return std::ranges::find(all, name, &std::pair<std::string, SamplerOptions>::first)->second;
}

/// Tokens that are the bytes of their ids.
TokenTable byte_table(const Stepper& stepper) {
  std::vector<std::string> bytes(static_cast<size_t>(stepper.summary().vocab_size));
  for (size_t id = 0; id < bytes.size(); ++id) bytes[id] = std::string(1, static_cast<char>(id));
  return TokenTable::from_bytes(bytes, stepper.summary().eos_token_ids);
}

/// Checks at its end that as many results were read back as steps were started.
class OneReadbackAStep {
 public:
  explicit OneReadbackAStep(const Engine& engine)
      : engine_(engine), readbacks_(engine.readback_count()), steps_(steps_started()) {}
  ~OneReadbackAStep() { EXPECT_EQ(readbacks(), steps()); }
  OneReadbackAStep(const OneReadbackAStep&) = delete;
  OneReadbackAStep& operator=(const OneReadbackAStep&) = delete;
  int64_t readbacks() const { return static_cast<int64_t>(engine_.readback_count() - readbacks_); }
  int64_t steps() const { return steps_started() - steps_; }

 private:
  const Engine& engine_;
  const uint64_t readbacks_;
  const int64_t steps_;
};

struct GuessedModel {
  ModelVariant variant;
  std::vector<std::string> samplers;
};

class CudaSpeculationModels : public ::testing::TestWithParam<GuessedModel> {};

// Over a border of blocks, behind a prompt that comes in chunks.
TEST_P(CudaSpeculationModels, ChangeNothingByGuesses) {
  const VariantFolder model(GetParam().variant);
  const auto engine = Engine::load(model.path(), guessing_options());
  const OneReadbackAStep counted(*engine);
  for (const std::string& name : GetParam().samplers) {
    AskedAnswer asked = ask(*engine, name, sampler_named(name), 57, 14);
    if (name == "drawn") asked.options.logprobs = 3;
    if (name == "mirostat") asked.options.prompt_logprobs = true;
    EXPECT_GT(expect_same_however_guessed(*engine, asked, {5}), 15);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaSpeculationModels,
                         ::testing::Values(GuessedModel{{"qwen3_moe", "int4", 32},
                                                        {"greedy", "drawn", "filters", "penalties",
                                                         "greedy penalties", "mirostat"}},
                                           GuessedModel{{"llama", "", 0},
                                                        {"drawn", "greedy penalties"}},
                                           GuessedModel{{"gpt_oss", "", 0}, {"penalties"}}),
                         [](const auto& info) { return info.param.variant.label(); });

TEST(CudaSpeculation, OfTheShippedModelChangesNothing) {
  const auto engine = Engine::load(shipped_model(), guessing_options());
  const AskedAnswer asked = ask(*engine, "greedy", sampler_named("greedy"), 3, 5);
  const ToldAnswer plain = make_answer(*engine, asked);
  OracleDrafter oracle(plain.result.tokens, 0.7, engine->summary().vocab_size);
  const ToldAnswer found = make_answer(*engine, asked, {.drafter = &oracle, .max_drafts = 3});
  expect_same_answer(plain, found);
  EXPECT_GT(found.result.speculation.num_accepted_draft_tokens, 0);
}

TEST(CudaSpeculation, EndsWhereTheContextDoesAndAtAnEndOfText) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), guessing_options(25));
  AskedAnswer asked = ask(*engine, "context", sampler_named("drawn"), 13, 60);
  EXPECT_GT(expect_same_however_guessed(*engine, asked, {8}), 0);
  const ToldAnswer whole = make_answer(*engine, asked);
  EXPECT_EQ(whole.result.reason, StopReason::kContextFull);
  asked.options.ignore_end_of_text = false;
  asked.options.stop_token_ids = {whole.result.tokens[6]};
  asked.name = "end";
  expect_same_however_guessed(*engine, asked, {8});
  EXPECT_EQ(make_answer(*engine, asked).result.reason, StopReason::kEndOfText);
}

// The device chooses under the masks that stand behind guesses; with mirostat the host does.
TEST(CudaSpeculation, ChangesNothingUnderAConstraint) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), guessing_options());
  const TokenTable table = byte_table(*engine);
  const OneReadbackAStep counted(*engine);
  for (const char* name : {"greedy", "penalties", "mirostat"}) {
    AskedAnswer asked = ask(*engine, name, sampler_named(name), 9, 20);
    asked.grammar = Grammar::regex(table, "(ab|cd|[0-9]){4,30}");
    EXPECT_GT(expect_same_however_guessed(*engine, asked, {4}), 0);
  }
}

TEST(CudaSpeculation, ChangesNothingWithAttribution) {
  EngineOptions options = guessing_options();
  options.attribution = true;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  for (const char* name : {"filters", "mirostat"}) {  // by the device; by the host in mid-pass
    EXPECT_GT(
        expect_same_however_guessed(*engine, ask(*engine, name, sampler_named(name), 9, 10), {4}),
        0);
  }
}

// Text that goes round in circles: few ids are left to choose from.
TEST(CudaSpeculation, OfDraftersThatLookUpTheTextIsRight) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), guessing_options());
  for (const float temperature : {0.0F, 0.9F}) {
    SamplerOptions sampler{.temperature = temperature, .seed = 7};
    for (int32_t id = 3; id < engine->summary().vocab_size; ++id) {
      sampler.logit_bias.emplace_back(id, -INFINITY);
    }
    const AskedAnswer asked = ask(*engine, "", sampler, 9, 24);
    const ToldAnswer plain = make_answer(*engine, asked);
    for (const char* name : {"ngram", "suffix"}) {
      SCOPED_TRACE(name);
      const auto drafter = make_drafter(name);
      const ToldAnswer found = make_answer(*engine, asked, {.drafter = drafter.get()});
      expect_same_answer(plain, found);
      EXPECT_EQ(found.result.speculation.problem, "");
      EXPECT_GT(found.result.speculation.num_accepted_draft_tokens, 0);
    }
  }
}

// The joint of a row of guesses is made and sampled on the device, as of the one row without.
TEST(CudaSpeculation, OfAFederationChangesNothing) {
  const auto federation = Federation::load(two_specialists(), guessing_options());
  const TokenTable table = byte_table(*federation);
  for (const bool is_constrained : {false, true}) {
    AskedAnswer asked = ask(*federation, "penalties", sampler_named("penalties"), 9, 12);
    if (is_constrained) asked.grammar = Grammar::regex(table, "(ab|cd|[0-9]){4,30}");
    EXPECT_GT(expect_same_however_guessed(*federation, asked, {4}), 0);
  }
}

/// What stands of a sequence's records.
std::map<int64_t, TokenRecord> records_of(std::span<const TokenRecord> all, SequenceId sequence,
                                          int64_t length) {
  std::map<int64_t, TokenRecord> records;
  for (const TokenRecord& record : all) {
    if (record.sequence == sequence && record.position < length) records[record.position] = record;
  }
  return records;
}

// One is guessed, one is not, one has a constraint and a drafter; they begin with a prefix.
TEST(CudaSpeculation, StandsBesideAnswersWithout) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), guessing_options());
  const Grammar grammar = Grammar::regex(byte_table(*engine), "[0-9]{4,40}");
  const std::vector<int32_t> held = prompt_ids(60, engine->summary().vocab_size, 3);
  const SequenceId first = engine->create_sequence();
  Rows rows;
  feed(*engine, first, held, 0, held.size(), 16, rows, StepInput::Rows::kNone);
  const PrefixId prefix = engine->retain(first, 58);
  engine->release(first);

  const std::vector<std::string> samplers = {"filters", "greedy", "drawn"};
  std::vector<std::vector<int32_t>> truths;
  std::vector<std::map<int64_t, TokenRecord>> plain;
  const auto options_of = [&](size_t i, Constraint* constraint) {
    GenerateOptions options = ask(*engine, "", sampler_named(samplers[i]), 1, 16).options;
    options.sequence = engine->attach(prefix);
    options.constraint = constraint;
    return options;
  };
  const std::vector<int32_t> prompt = {5, 6, 7};
  const auto length_of = [](const GenerateResult& result) {
    return 58 + 3 + std::ssize(result.tokens) - 1;
  };
  VectorSink sink;
  engine->set_audit_sink(&sink);
  for (size_t i = 0; i < samplers.size(); ++i) {
    const auto constraint = i == 2 ? grammar.start() : nullptr;
    const GenerateOptions options = options_of(i, constraint.get());
    const GenerateResult result = generate(*engine, prompt, options);
    truths.push_back(result.tokens);
    plain.push_back(records_of(sink.take(), options.sequence, length_of(result)));
    engine->release(options.sequence);
  }
  OracleDrafter often(truths[0], 0.8, engine->summary().vocab_size);
  OracleDrafter seldom(truths[2], 0.4, engine->summary().vocab_size);
  const auto constraint = grammar.start();
  std::vector<GenerateOptions> options;
  for (size_t i = 0; i < samplers.size(); ++i) {
    options.push_back(options_of(i, i == 2 ? constraint.get() : nullptr));
  }
  options[0].speculation = {.drafter = &often, .max_drafts = 3};
  options[2].speculation = {.drafter = &seldom, .max_drafts = 2};
  std::vector<Generation> answers;
  answers.reserve(options.size());
  for (const GenerateOptions& one : options) answers.emplace_back(*engine, prompt, one);
  const OneReadbackAStep counted(*engine);
  EXPECT_EQ(answer_together(*engine, answers, 4, 4), 16) << "as long as the one without takes";
  const std::vector<TokenRecord> all = sink.take();
  for (size_t i = 0; i < samplers.size(); ++i) {
    SCOPED_TRACE(samplers[i]);
    const GenerateResult result = answers[i].take_result();
    EXPECT_EQ(result.tokens, truths[i]);
    const auto found = records_of(all, options[i].sequence, length_of(result));
    ASSERT_EQ(found.size(), plain[i].size());
    for (const auto& [position, record] : plain[i]) {
      EXPECT_EQ(record_digest(record), record_digest(found.at(position))) << position;
    }
  }
  engine->set_audit_sink(nullptr);
}

/// The steps of an answer without logits and records, and the bytes that come back of each.
int64_t bytes_of_a_step(const SamplerOptions& sampler, const char* regex = nullptr) {
  EngineOptions options = options_on(true);
  options.audit_mode = AuditMode::kNone;
  options.audit_level = AuditLevel::kStandard;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  AskedAnswer asked = ask(*engine, "", sampler, 5, 16);
  const TokenTable table = byte_table(*engine);
  const auto answer = [&] {
    const auto constraint = regex != nullptr ? Grammar::regex(table, regex).start() : nullptr;
    asked.options.constraint = constraint.get();
    return generate(*engine, asked.prompt, asked.options).tokens;
  };
  const std::vector<int32_t> truth = answer();
  OracleDrafter oracle(truth, 0.8, engine->summary().vocab_size);
  asked.options.speculation = {.drafter = &oracle, .max_drafts = 4};
  const OneReadbackAStep counted(*engine);
  const size_t before = bytes_to_host();
  EXPECT_EQ(answer(), truth);
  EXPECT_LT(counted.steps(), 12);
  return static_cast<int64_t>(bytes_to_host() - before) / counted.steps();
}

// Rows of drafts are chosen where their logits are, and penalties see the drafts before them.
TEST(CudaSpeculation, IsCheckedWhereTheLogitsAre) {
  const int64_t row = int64_t{256} * 4;
  for (const char* name : {"greedy", "drawn", "filters", "penalties", "greedy penalties"}) {
    for (const char* regex : {static_cast<const char*>(nullptr), "(ab|cd|[0-9]){4,30}"}) {
      EXPECT_LE(bytes_of_a_step(sampler_named(name), regex), 8 * 4 + 5 * 16) << name;
    }
  }
  EXPECT_GT(bytes_of_a_step(sampler_named("mirostat")), row) << "no device form";
}

TEST(CudaSpeculation, OfWhoReadsLayersIsRefusedByName) {
  EngineOptions options = options_on(true);
  const auto engine = Engine::load(oracle_folder("llama"), options);
  const Error exits = error_of([&] { make_early_exit(*engine, {.layers = 1}); });
  EXPECT_EQ(exits.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(exits, {"exit", "hispec", "--device cpu"})) << exits.what();
  options.feature_layers = {1};
  const Error heads = error_of([&] { Engine::load(oracle_folder("llama"), options); });
  EXPECT_EQ(heads.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(heads, {"feature_layers", "eagle3", "peagle", "medusa", "mtp"}))
      << heads.what();
}

// While the gate asks nobody, steps are started ahead as of an answer without guesses.
TEST(CudaSpeculation, GoesOnAheadInAPauseOfTheGate) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options_on(true));
  AskedAnswer asked = ask(*engine, "", sampler_named("drawn"), 5, 60);
  const std::vector<int32_t> truth = generate(*engine, asked.prompt, asked.options).tokens;
  OracleDrafter wrong(truth, 0, engine->summary().vocab_size);
  asked.options.speculation = {.drafter = &wrong,
                               .max_drafts = 4,
                               .costs = PassCosts({{1, 1.0}, {8, 4.0}}),
                               .draft_cost = 0.0};
  const OneReadbackAStep counted(*engine);  // none is started in vain
  Generation answer(*engine, asked.prompt, asked.options);
  int64_t steps = 0, ahead = 0, with_guesses = 0;
  while (!answer.finished()) {
    const StepInput input = answer.next_input(16, 16);
    EXPECT_FALSE(input.goes_on && input.num_drafts > 0);
    ++steps;
    ahead += input.goes_on ? 1 : 0;
    with_guesses += input.num_drafts > 0 ? 1 : 0;
    answer.accept(engine->step({&input, 1}));
  }
  EXPECT_EQ(answer.take_result().tokens, truth);
  EXPECT_EQ(counted.steps(), steps);
  EXPECT_GT(with_guesses, 2);
  EXPECT_GT(ahead, 35);
}

}  // namespace
}  // namespace vitrine::testing
