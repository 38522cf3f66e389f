// SPDX-License-Identifier: Apache-2.0
// Guesses that are checked by rejection sampling: answers are other ones than without, and have
// the same distribution.
#include <cmath>
#include <functional>

#include "tests/engine/speculated_answer.h"

namespace vitrine::testing {
namespace {

EngineOptions engine_options(int sequences = 1) {
  EngineOptions options = test_options(1, 16);
  options.max_context = 128;
  options.max_sequences = sequences;
  options.max_step_tokens = 32;
  options.max_logit_rows = 32;
  options.keep_logits = true;
  return options;
}

/// Guesses what a function says of the answer so far, one token behind another.
class PlannedDrafter : public Drafter {
 public:
  using Plan = std::function<int32_t(std::span<const int32_t> answer)>;
  explicit PlannedDrafter(Plan plan) : plan_(std::move(plan)) {}
  std::string_view name() const override { return "planned"; }
  DraftTextId start(const DraftText& text) override {
    prompt_tokens_ = text.prompt_tokens;
    tokens_.clear();
    return 1;
  }
  DraftTextId fork(DraftTextId) override { return 0; }
  void commit(DraftTextId, std::span<const int32_t> tokens) override {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }
  void truncate(DraftTextId, int64_t length) override {
    tokens_.resize(static_cast<size_t>(length));
  }
  void propose(std::span<DraftProposal> proposals) override {
    std::vector<int32_t> answer(tokens_.begin() + prompt_tokens_, tokens_.end());
    for (int32_t& token : proposals[0].tokens) {
      token = plan_(answer);
      answer.push_back(token);
      ++proposals[0].count;
    }
  }
  void release(DraftTextId, bool) override {}

 private:
  Plan plan_;
  std::vector<int32_t> tokens_;
  int64_t prompt_tokens_ = 0;
};

// What a model says of three tokens, each of the three best ones that stand there.
class ThreeTokens {
 public:
  static constexpr size_t kBest = 3;
  ThreeTokens(Engine& engine, std::span<const int32_t> prompt, double temperature) {
    std::vector<std::vector<int32_t>> level = {{}};
    for (int length = 0; length < 3; ++length) {
      std::vector<std::vector<int32_t>> next;
      for (const std::vector<int32_t>& answer : level) {
        std::vector<int32_t> tokens(prompt.begin(), prompt.end());
        tokens.insert(tokens.end(), answer.begin(), answer.end());
        StepInput input;
        input.sequence = engine.create_sequence();
        input.tokens = tokens;
        const std::span<const float> row = engine.step({&input, 1})[0].scores;
        const std::vector<double> logits(row.begin(), row.end());
        engine.release(input.sequence);
        Choice& choice = choices_[answer];
        for (size_t i = 0; i < logits.size(); ++i) choice.tokens.push_back(static_cast<int>(i));
        std::ranges::stable_sort(choice.tokens, std::greater(),
                                 [&](int32_t id) { return logits[static_cast<size_t>(id)]; });
        choice.tokens.resize(kBest);
        double total = 0;
        for (const int32_t token : choice.tokens) {
          choice.p.push_back(std::exp(logits[static_cast<size_t>(token)] / temperature));
          total += choice.p.back();
          next.push_back(answer);
          next.back().push_back(token);
        }
        for (double& p : choice.p) p /= total;
      }
      level = std::move(next);
    }
    answers_ = level;
  }
  double probability(std::span<const int32_t> answer, int32_t token) const {
    const Choice& choice = choices_.at({answer.begin(), answer.end()});
    const auto at = std::ranges::find(choice.tokens, token);
    return at == choice.tokens.end() ? 0
                                     : choice.p[static_cast<size_t>(at - choice.tokens.begin())];
  }
  double probability(std::span<const int32_t> answer) const {
    double p = 1;
    for (size_t i = 0; i < 3; ++i) p *= probability(answer.first(i), answer[i]);
    return p;
  }
  /// The token at a place of the best ones behind an answer of at most two.
  int32_t token(std::span<const int32_t> answer, size_t place) const {
    return choices_.at({answer.begin(), answer.end()}).tokens.at(place);
  }
  /// All answers that there can be.
  const std::vector<std::vector<int32_t>>& answers() const { return answers_; }

 private:
  struct Choice {
    std::vector<int32_t> tokens;
    std::vector<double> p;
  };
  std::map<std::vector<int32_t>, Choice> choices_;
  std::vector<std::vector<int32_t>> answers_;
};

TEST(DraftAcceptance, RejectionKeepsTheDistribution) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), engine_options());
  const std::vector<int32_t> prompt = prompt_ids(5, engine->summary().vocab_size);
  constexpr double kTemperature = 1;
  const ThreeTokens exact(*engine, prompt, kTemperature),
      cooler(*engine, prompt, 0.7 * kTemperature);
  for (const size_t place : {0U, 1U, 2U}) {
    SCOPED_TRACE("the guess is number " + std::to_string(place));
    PlannedDrafter drafter([&](std::span<const int32_t> answer) {
      return answer.size() < 3 ? exact.token(answer, place) : 0;
    });
    GenerateOptions options;
    options.max_new_tokens = 4;  // two guesses behind the first token
    options.ignore_end_of_text = true;
    options.sampler.temperature = static_cast<float>(kTemperature);
    options.sampler.top_k = static_cast<int32_t>(ThreeTokens::kBest);
    options.speculation = {
        .drafter = &drafter, .max_drafts = 2, .acceptance = DraftAcceptance::kRejection};
    std::map<std::vector<int32_t>, int> found;
    constexpr int kAnswers = 3000;
    double mean = 0, variance = 0;
    int64_t accepted = 0;
    for (int seed = 0; seed < kAnswers; ++seed) {
      options.sampler.seed = static_cast<uint64_t>(seed);
      GenerateResult result = generate(*engine, prompt, options);
      std::vector<int32_t> answer(result.tokens.begin(), result.tokens.begin() + 3);
      ++found[answer];
      // The second token's guess is always checked, the third one's behind one that was right, or
      // in a pass of its own.
      for (size_t length : {1U, 2U}) {
        const auto before = std::span(answer).first(length);
        const double p = exact.probability(before, exact.token(before, place));
        mean += p;
        variance += p * (1 - p);
        accepted += answer[length] == exact.token(before, place) ? 1 : 0;
      }
      EXPECT_EQ(result.speculation.problem, "");
      EXPECT_GT(result.speculation.num_draft_tokens, 0);
    }
    EXPECT_LT(std::abs(static_cast<double>(accepted) - mean), 4 * std::sqrt(variance));
    const auto statistic = [&](const ThreeTokens& expected) {
      double sum = 0;
      int counted = 0;
      for (const std::vector<int32_t>& answer : exact.answers()) {
        const double p = kAnswers * expected.probability(answer);
        EXPECT_GT(p, 5);
        counted += found[answer];
        sum += (found[answer] - p) * (found[answer] - p) / p;
      }
      EXPECT_EQ(counted, kAnswers);
      return sum;
    };
    // The 99.9th percentile of chi-squared at 26 degrees of freedom.
    EXPECT_LT(statistic(exact), 54.05);
    EXPECT_GT(statistic(cooler), 54.05) << "the check can fail";
  }
}

AskedAnswer ask(const Stepper& stepper, const SamplerOptions& sampler) {
  AskedAnswer asked;
  asked.prompt = prompt_ids(21, stepper.summary().vocab_size);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = 60;
  asked.options.ignore_end_of_text = true;
  return asked;
}

TEST(DraftAcceptance, RejectionIsTheSameWhereNothingIsDrawnOrTheGuessCannotCome) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), engine_options());
  for (auto [name, sampler] : all_samplers()) {
    SCOPED_TRACE(name);
    const bool is_greedy = sampler.temperature == 0;
    if (!is_greedy) sampler.ban = {{7}};
    const AskedAnswer asked = ask(*engine, sampler);
    const ToldAnswer plain = make_answer(*engine, asked);
    OracleDrafter oracle(plain.result.tokens, 0.7, engine->summary().vocab_size);
    PlannedDrafter banned([](std::span<const int32_t>) { return 7; });
    Drafter* const drafter = is_greedy ? static_cast<Drafter*>(&oracle) : &banned;
    const ToldAnswer found = make_answer(
        *engine, asked,
        {.drafter = drafter, .max_drafts = 3, .acceptance = DraftAcceptance::kRejection});
    expect_same_answer(plain, found);
    EXPECT_EQ(found.result.speculation.num_accepted_draft_tokens > 0, is_greedy);
    EXPECT_GT(found.result.speculation.num_draft_tokens, 20);
  }
}

TEST(DraftAcceptance, RejectionRepeatsItselfAloneAndBesideOthers) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), engine_options(3));
  const auto drafter = make_drafter("ngram");
  for (auto [name, sampler] : all_samplers()) {
    SCOPED_TRACE(name);
    sampler.temperature = std::min(sampler.temperature, 0.5F);  // something repeats
    AskedAnswer asked = ask(*engine, sampler);
    const SpeculationOptions speculation = {
        .drafter = drafter.get(), .max_drafts = 4, .acceptance = DraftAcceptance::kRejection};
    const ToldAnswer once = make_answer(*engine, asked, speculation);
    expect_same_answer(once, make_answer(*engine, asked, speculation));
    asked.options.speculation = speculation;
    std::vector<Generation> answers;
    answers.reserve(3);
    for (int i = 0; i < 3; ++i) answers.emplace_back(*engine, asked.prompt, asked.options);
    answer_together(*engine, answers, 8, 5);
    for (Generation& one : answers) EXPECT_EQ(one.take_result().tokens, once.result.tokens);
  }
}

TEST(DraftAcceptance, RejectionKeepsToAConstraint) {
  const auto engine = Engine::load(shipped_model(), engine_options());
  std::vector<std::string> bytes(static_cast<size_t>(engine->summary().vocab_size));
  for (size_t byte = 0; byte < 256; ++byte) bytes[byte] = std::string(1, static_cast<char>(byte));
  const auto table = TokenTable::from_bytes(std::move(bytes), engine->summary().eos_token_ids);
  AskedAnswer asked = ask(*engine, {.temperature = 1.5F});
  asked.options.ignore_end_of_text = false;
  asked.grammar = Grammar::regex(table, "([ab]c){4,20}[0-9]{3}");
  int64_t accepted = 0, rejected = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    asked.options.sampler.seed = seed;
    const auto drafter = make_drafter("ngram");
    const ToldAnswer found = make_answer(
        *engine, asked, {.drafter = drafter.get(), .acceptance = DraftAcceptance::kRejection});
    EXPECT_TRUE(found.result.is_complete);
    EXPECT_EQ(found.result.speculation.problem, "");
    accepted += found.result.speculation.num_accepted_draft_tokens;
    rejected += found.result.speculation.num_rejected_passes;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(rejected, 0);
}

TEST(DraftAcceptance, RejectionOfTreesIsRefused) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), engine_options());
  GenerateOptions options;
  const auto drafter = make_drafter("ngram");
  options.speculation = {
      .drafter = drafter.get(), .max_depth = 2, .acceptance = DraftAcceptance::kRejection};
  try {
    generate(*engine, std::vector<int32_t>{1, 2, 3}, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("max_depth"), std::string::npos);
  }
}

}  // namespace
}  // namespace vitrine::testing
