// SPDX-License-Identifier: Apache-2.0
// A model's first layers guess for all of them: the answer is the one without, whether the layers
// below are computed once or again, and each guess is what those layers choose.
#include "vitrine/drafters.h"

#include <climits>

#include "engine/engine_access.h"
#include "engine/run/step_runner.h"
#include "tests/engine/cancelled_drafter.h"

namespace vitrine::testing {
namespace {

EngineOptions exit_options(AuditMode mode, int context = 96) {
  EngineOptions options = test_options(2, 16);
  options.max_context = context;
  options.max_step_tokens = 32;
  options.max_logit_rows = 16;
  options.audit_mode = mode;
  options.audit_level = AuditLevel::kFull;
  if (mode != AuditMode::kNone) options.hidden_state_layers = {0, 2};
  return options;
}

AskedAnswer ask(const Stepper& stepper, const std::string& name, const SamplerOptions& sampler,
                int max_new_tokens = 60) {
  AskedAnswer asked;
  asked.name = name;
  asked.prompt = prompt_ids(21, stepper.summary().vocab_size);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = max_new_tokens;
  asked.options.ignore_end_of_text = true;
  return asked;
}

int64_t led_steps(Engine& engine) {
  return engine::EngineAccess::runner(engine).leads().num_taken();
}

/// All exits of a model, alone and with a check by the last of them.
std::vector<EarlyExitOptions> exits_of(const Engine& engine) {
  const int last = engine.summary().num_layers - 1;
  return {{1}, {last}, {1, last}};
}

/// The answer, and the same with guesses of each exit. Returns how many of those were right.
int64_t expect_same_at_every_exit(Engine& engine, const AskedAnswer& asked, int drafts = 5) {
  SCOPED_TRACE(asked.name);
  const ToldAnswer plain = make_answer(engine, asked);
  const auto blocks = engine.kv_blocks();
  int64_t accepted = 0;
  for (const EarlyExitOptions& exit : exits_of(engine)) {
    SCOPED_TRACE(std::to_string(exit.layers) + " layers, " + std::to_string(exit.checking_layers));
    const auto drafter = make_early_exit(engine, exit);
    const ToldAnswer found =
        make_answer(engine, asked, {.drafter = drafter.get(), .max_drafts = drafts});
    expect_same_answer(plain, found);
    const SpeculationCounts& counts = found.result.speculation;
    EXPECT_EQ(counts.problem, "");
    EXPECT_EQ(counts.drafter, exit.checking_layers > 0 ? "hispec" : "exit");
    EXPECT_GT(counts.num_draft_tokens, 0);
    EXPECT_EQ(engine.kv_blocks(), blocks);
    accepted += counts.num_accepted_draft_tokens;
  }
  return accepted;
}

class EarlyExitModels : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(EarlyExitModels, ChangeNothingWithAnySampler) {
  const VariantFolder folder(GetParam());
  for (const AuditMode mode : {AuditMode::kNone, AuditMode::kDeferred}) {
    SCOPED_TRACE(mode == AuditMode::kNone ? "no recorder" : "with a recorder");
    const auto engine = Engine::load(folder.path(), exit_options(mode));
    int64_t accepted = 0;
    for (const auto& [name, sampler] : all_samplers()) {
      AskedAnswer asked = ask(*engine, name, sampler);
      if (name == "drawn") asked.options.logprobs = 3;
      if (name == "mirostat") asked.options.prompt_logprobs = true;
      accepted += expect_same_at_every_exit(*engine, asked);
    }
    EXPECT_GT(accepted, 0);
    EXPECT_GT(led_steps(*engine), 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EarlyExitModels,
                         ::testing::Values(ModelVariant{"llama", ""}, ModelVariant{"gpt_oss", ""},
                                           ModelVariant{"glm4_moe_lite", ""},
                                           ModelVariant{"gemma4_text_e", ""},
                                           ModelVariant{"qwen3_moe", "int4"},
                                           ModelVariant{"shipped", ""}),
                         variant_name);

TEST(EarlyExit, LeavesStepsWholeOfWhichAllIsToBeSeen) {
  EngineOptions naive = exit_options(AuditMode::kNaive), attribution = naive;
  attribution.audit_mode = AuditMode::kDeferred;
  EngineOptions tapped = exit_options(AuditMode::kNone);
  attribution.attribution = true;
  tapped.feature_layers = {1};
  for (const EngineOptions& options : {naive, attribution, tapped}) {
    const auto engine = Engine::load(shipped_model(), options);
    for (const size_t sampler : {0U, 1U}) {
      const auto [name, chosen] = all_samplers()[sampler];
      expect_same_at_every_exit(*engine, ask(*engine, name, chosen));
    }
    EXPECT_EQ(led_steps(*engine), 0);
  }
}

TEST(EarlyExit, ChangesNothingUnderAConstraint) {
  const auto engine = Engine::load(shipped_model(), exit_options(AuditMode::kNone));
  std::vector<std::string> bytes(static_cast<size_t>(engine->summary().vocab_size));
  for (size_t byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
  const auto table = TokenTable::from_bytes(std::move(bytes), engine->summary().eos_token_ids);
  for (const auto& [name, sampler] : all_samplers()) {
    AskedAnswer asked = ask(*engine, name, sampler, 70);
    asked.options.ignore_end_of_text = false;
    asked.grammar = Grammar::regex(table, "[a-f]{4,30}(xyz)+[0-9]{3}");
    const ToldAnswer plain = make_answer(*engine, asked);
    for (const EarlyExitOptions& exit : exits_of(*engine)) {
      const auto drafter = make_early_exit(*engine, exit);
      expect_same_answer(plain, make_answer(*engine, asked, {.drafter = drafter.get()}));
    }
  }
}

TEST(EarlyExit, EndsWhereTheContextDoes) {
  EngineOptions options = exit_options(AuditMode::kNone, 40);
  const auto engine = Engine::load(oracle_folder("llama"), options);
  for (const auto& [name, sampler] : all_samplers()) {
    const AskedAnswer asked = ask(*engine, name, sampler);
    for (const int drafts : {1, 2, 8, 15}) expect_same_at_every_exit(*engine, asked, drafts);
    EXPECT_EQ(make_answer(*engine, asked).result.reason, StopReason::kContextFull);
  }
}

/// Asks another one, and keeps what it guesses.
class WatchedDrafter final : public Drafter {
 public:
  explicit WatchedDrafter(std::unique_ptr<Drafter> drafter) : drafter_(std::move(drafter)) {}
  std::string_view name() const override { return drafter_->name(); }
  DraftTextId start(const DraftText& text) override { return drafter_->start(text); }
  DraftTextId fork(DraftTextId text) override { return drafter_->fork(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    drafter_->commit(text, tokens);
  }
  void truncate(DraftTextId text, int64_t length) override { drafter_->truncate(text, length); }
  void propose(std::span<DraftProposal> proposals) override {
    drafter_->propose(proposals);
    const auto made = proposals[0].tokens.first(static_cast<size_t>(proposals[0].count));
    guesses.push_back({text_, {made.begin(), made.end()}});
  }
  void release(DraftTextId text, bool is_whole) override { drafter_->release(text, is_whole); }

  struct Guess {
    std::vector<int32_t> text, tokens;
    bool operator==(const Guess&) const = default;
  };
  std::vector<Guess> guesses;

 private:
  std::unique_ptr<Drafter> drafter_;
  std::vector<int32_t> text_;
};

std::vector<WatchedDrafter::Guess> guesses_of(Engine& engine, const EarlyExitOptions& exit) {
  WatchedDrafter drafter(make_early_exit(engine, exit));
  make_answer(engine, ask(engine, "drawn", all_samplers()[1].second, 40),
              {.drafter = &drafter, .max_drafts = 7});
  return drafter.guesses;
}

// Every guess is what the head chooses of the exit's rows, computed from the beginning of the text;
// a check in between changes who computes a guess, and no guess.
TEST(EarlyExit, GuessesWhatItsLayersChoose) {
  for (const std::string& folder : {oracle_folder("qwen3_moe"), shipped_model()}) {
    const auto engine = Engine::load(folder, exit_options(AuditMode::kNone));
    const auto other = Engine::load(folder, test_options());
    const int last = engine->summary().num_layers - 1;
    for (int layers = 1; layers <= last; ++layers) {
      SCOPED_TRACE(folder + ", " + std::to_string(layers) + " layers");
      const auto guesses = guesses_of(*engine, {layers});
      ASSERT_GT(guesses.size(), 5U);
      for (const WatchedDrafter::Guess& guess : guesses) {
        std::vector<int32_t> all = guess.text;
        all.insert(all.end(), guess.tokens.begin(), guess.tokens.end());
        const SequenceId sequence = other->create_sequence();
        StepInput input{sequence, all};
        input.rows = StepInput::Rows::kAll;
        const auto outputs = other->step_layers({&input, 1}, {0, layers});
        for (size_t i = guess.text.size(); i < all.size(); ++i) {
          const std::span<const float> logits = outputs[i - 1].scores;
          EXPECT_EQ(all[i], std::ranges::max_element(logits) - logits.begin());
        }
        other->release(sequence);
      }
      for (int below = 1; below < layers; ++below) {
        EXPECT_EQ(guesses_of(*engine, {below, layers}), guesses);
      }
    }
  }
}

// What a check replaced is where the layers below choose otherwise behind the same tokens.
TEST(EarlyExit, CountsGuessesThatTheCheckReplaced) {
  const auto engine = Engine::load(shipped_model(), exit_options(AuditMode::kNone));
  const auto other = Engine::load(shipped_model(), test_options());
  WatchedDrafter drafter(make_early_exit(*engine, {1, 3}));
  const SpeculationCounts counts =
      make_answer(*engine, ask(*engine, "drawn", all_samplers()[1].second, 40),
                  {.drafter = &drafter, .max_drafts = 7})
          .result.speculation;
  int64_t replaced = 0;
  for (const WatchedDrafter::Guess& guess : drafter.guesses) {
    std::vector<int32_t> all = guess.text;
    all.insert(all.end(), guess.tokens.begin(), guess.tokens.end());
    StepInput input{other->create_sequence(), all};
    input.rows = StepInput::Rows::kAll;
    const auto outputs = other->step_layers({&input, 1}, {0, 1});
    for (size_t i = guess.text.size(); i < all.size(); ++i) {
      const std::span<const float> logits = outputs[i - 1].scores;
      replaced += all[i] != std::ranges::max_element(logits) - logits.begin() ? 1 : 0;
    }
    other->release(input.sequence);
  }
  EXPECT_GT(replaced, 10);
  EXPECT_EQ(counts.num_replaced_draft_tokens, replaced);
  SpeculationCounts twice = counts;
  twice += counts;
  EXPECT_EQ(twice.num_replaced_draft_tokens, 2 * replaced);
}

TEST(EarlyExit, OfNearlyAllLayersIsOftenRight) {
  const auto engine = Engine::load(shipped_model(), exit_options(AuditMode::kNone));
  const AskedAnswer asked = ask(*engine, "greedy", all_samplers()[0].second);
  std::vector<double> rates;
  for (const int layers : {1, engine->summary().num_layers - 1}) {
    const auto drafter = make_early_exit(*engine, {layers});
    const auto counts =
        make_answer(*engine, asked, {.drafter = drafter.get(), .max_drafts = 2}).result.speculation;
    rates.push_back(counts.draft_acceptance_rate());
  }
  EXPECT_GT(rates[1], 0.2);
  EXPECT_GT(rates[1], rates[0]);
}

TEST(EarlyExit, EndsWithItsAnswer) {
  const auto engine = Engine::load(shipped_model(), exit_options(AuditMode::kDeferred));
  for (const EarlyExitOptions& exit : exits_of(*engine)) {
    const auto drafter = make_early_exit(*engine, exit);
    expect_cancelled_guesses(*engine, *drafter, ask(*engine, "", all_samplers()[1].second));
  }
}

TEST(EarlyExit, OfTwoDraftersInTurn) {
  const auto engine = Engine::load(shipped_model(), exit_options(AuditMode::kDeferred));
  const auto low = make_early_exit(*engine, {1}), high = make_early_exit(*engine, {2, 3});
  const AskedAnswer asked = ask(*engine, "drawn", all_samplers()[1].second);
  const ToldAnswer plain = make_answer(*engine, asked);
  for (Drafter* drafter : {low.get(), high.get(), low.get()}) {
    expect_same_answer(plain, make_answer(*engine, asked, {.drafter = drafter}));
  }
}

TEST(EarlyExit, OfSeveralAnswersIsOneStep) {
  const auto engine = Engine::load(shipped_model(), exit_options(AuditMode::kNone));
  std::vector<AskedAnswer> asked;
  for (int i = 0; i < 3; ++i) {
    asked.push_back(ask(*engine, "several", all_samplers()[static_cast<size_t>(i)].second, 30));
    asked.back().prompt.resize(11 + 4 * static_cast<size_t>(i));
  }
  const auto drafter = make_early_exit(*engine, {2});
  std::vector<Generation> answers;
  for (const AskedAnswer& one : asked) {
    GenerateOptions options = one.options;
    options.speculation = {.drafter = drafter.get(), .max_drafts = 3};
    answers.emplace_back(*engine, one.prompt, options);
  }
  answer_together(*engine, answers, 10, 5);
  EXPECT_GT(led_steps(*engine), 5);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].take_result().tokens, make_answer(*engine, asked[i]).result.tokens);
  }
}

/// A drafter that has guessed behind a text whose tokens but the last its sequence holds.
class GuessedText : public ::testing::Test {
 protected:
  GuessedText()
      : engine_(Engine::load(shipped_model(), test_options())),
        drafter_(make_early_exit(*engine_, {2})),
        ids_(prompt_ids(21, engine_->summary().vocab_size)),
        sequence_(engine_->create_sequence()) {
    Rows rows;
    feed(*engine_, sequence_, ids_, 0, ids_.size() - 1, 0, rows);
    text_ = drafter_->start({{}, std::ssize(ids_), 100, sequence_});
    drafter_->commit(text_, ids_);
    chain_ = {ids_.back()};
    guess();
  }
  void guess() {
    std::vector<int32_t> tokens(4);
    DraftProposal proposal{text_, tokens};
    drafter_->propose({&proposal, 1});
    ASSERT_EQ(proposal.count, 4);
    chain_.resize(1);
    chain_.insert(chain_.end(), tokens.begin(), tokens.end());
  }
  /// Whether a step of these has the bits that they have behind the text.
  void expect_bits(SequenceId sequence, std::vector<int32_t> history,
                   const std::vector<int32_t>& tokens) {
    const size_t past = history.size();
    ASSERT_EQ(engine_->length(sequence), std::ssize(history));
    history.insert(history.end(), tokens.begin(), tokens.end());
    Rows rows;
    feed(*engine_, sequence, history, past, history.size(), 0, rows);
    EXPECT_TRUE(same_bits(score(*engine_, history), rows, tokens.size()));
  }
  std::vector<int32_t> past() const { return {ids_.begin(), ids_.end() - 1}; }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<int32_t> ids_, chain_;
  SequenceId sequence_;
  DraftTextId text_ = 0;
};

TEST_F(GuessedText, GoesOnBehindItsLayersWithTheBitsOfAWholeStep) {
  expect_bits(sequence_, past(), chain_);
  EXPECT_EQ(led_steps(*engine_), 1);
}

TEST_F(GuessedText, MayBringFewerThanWereGuessed) {
  chain_.resize(3);
  expect_bits(sequence_, past(), chain_);
  EXPECT_EQ(led_steps(*engine_), 1);
}

TEST_F(GuessedText, MayGoOnOtherwise) {
  chain_[2] = (chain_[2] + 1) % engine_->summary().vocab_size;
  expect_bits(sequence_, past(), chain_);
  EXPECT_EQ(led_steps(*engine_), 0);
}

TEST_F(GuessedText, MayBeForkedKeptAndCut) {
  const SequenceId fork = engine_->fork(sequence_);
  const PrefixId prefix = engine_->retain(sequence_, std::ssize(ids_) - 1);
  const SequenceId attached = engine_->attach(prefix);
  expect_bits(sequence_, past(), chain_);
  EXPECT_EQ(led_steps(*engine_), 1);
  expect_bits(fork, past(), chain_);
  expect_bits(attached, past(), chain_);
  EXPECT_EQ(led_steps(*engine_), 1);
}

TEST_F(GuessedText, IsGuessedAnewWhereItsTextChanged) {
  std::vector<int32_t> other = past();
  other.back() = (other.back() + 1) % engine_->summary().vocab_size;
  engine_->truncate(sequence_, std::ssize(other) - 1);
  Rows rows;
  feed(*engine_, sequence_, other, other.size() - 1, other.size(), 0, rows);
  expect_bits(sequence_, other, chain_);
  EXPECT_EQ(led_steps(*engine_), 0);
}

TEST_F(GuessedText, BringsNothingToASequenceThatStandsElsewhere) {
  engine_->truncate(sequence_, 7);
  std::vector<int32_t> tokens(4);
  DraftProposal proposal{text_, tokens};
  drafter_->propose({&proposal, 1});
  EXPECT_EQ(proposal.count, 0);
  EXPECT_EQ(engine_->length(sequence_), 7);
}

TEST(EarlyExitErrors, SayWhatWasExpected) {
  const auto engine = Engine::load(shipped_model(), test_options());
  const auto refused = [&](const Engine& of, const EarlyExitOptions& exit) {
    Error error = error_of([&] { make_early_exit(const_cast<Engine&>(of), exit); });
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    return error;
  };
  for (const EarlyExitOptions& exit :
       std::vector<EarlyExitOptions>{{0}, {-1}, {4}, {INT_MAX}, {2, 2}, {2, 1}, {2, 4}, {2, -1}}) {
    const Error error = refused(*engine, exit);
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string_view(error.what()).find("of the model's 4"), std::string_view::npos)
        << error.what();
  }
  const auto state = Engine::load(oracle_folder("qwen3_next"), test_options());
  EXPECT_EQ(refused(*state, {1}).kind(), ErrorKind::kUnsupported);
  const auto drafter = make_early_exit(*engine, {1});
  EXPECT_EQ(error_of([&] { drafter->start({}); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_of([&] { drafter->fork(1); }).kind(), ErrorKind::kUnsupported);
  EXPECT_EQ(error_of([&] { drafter->commit(9, {}); }).kind(), ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace vitrine::testing
