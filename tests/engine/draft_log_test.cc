// SPDX-License-Identifier: Apache-2.0
// What is told of guesses: to sinks, in logs beside their records, and in totals.
#include <unistd.h>

#include <filesystem>

#include "tests/engine/tree_oracle.h"

namespace vitrine::testing {
namespace {

constexpr int32_t kPrompt = 21;

EngineOptions log_options() {
  EngineOptions options = test_options(2, 16);
  options.max_context = 160;
  options.max_step_tokens = 48;
  options.max_logit_rows = 40;
  options.audit_mode = AuditMode::kDeferred;
  return options;
}

struct LoggedAnswer {
  GenerateResult result;
  VtrReport report;
  std::vector<DraftedPass> drafts;
  std::vector<TokenRecord> records;
};

class DraftLog : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "draft_log_" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  GenerateOptions options_of(const SpeculationOptions& speculation) const {
    GenerateOptions options;
    options.max_new_tokens = 60;
    options.ignore_end_of_text = true;
    options.sampler.seed = 11;
    options.sampler.temperature = 0.9F;
    options.speculation = speculation;
    return options;
  }

  LoggedAnswer answer(Engine& engine, const SpeculationOptions& speculation) const {
    const std::string path = folder_ + "/run.vtr";
    LoggedAnswer found;
    LogHeader header;
    header.speculation = {{"drafter", "oracle"}};
    int told = 0;
    {
      VtrLog log(path, header, {.overwrite = true});
      engine.set_audit_sink(&log.sink());
      found.result = generate(
          engine, prompt_ids(kPrompt, engine.summary().vocab_size), options_of(speculation),
          [&](const TokenEvent&) { return stop_behind_ == 0 || ++told < stop_behind_; });
      engine.set_audit_sink(nullptr);
      log.finish("length");
    }
    found.report = verify_vtr(path);
    EXPECT_EQ(found.report.seal, VtrReport::Seal::kComplete) << found.report.problem;
    VtrReader reader(path);
    for (VtrPage page; reader.next(page);) {
      found.drafts.insert(found.drafts.end(), page.drafts.begin(), page.drafts.end());
      found.records.insert(found.records.end(), page.records.begin(), page.records.end());
    }
    return found;
  }

  /// What the log has of guesses is what came of them: by the answer itself, and by the totals.
  /// Returns how many positions were taken back.
  static int64_t expect_consistent(const LoggedAnswer& found, const std::vector<int32_t>& tokens) {
    const SpeculationCounts& counts = found.result.speculation;
    EXPECT_EQ(counts.problem, "");
    EXPECT_EQ(found.result.tokens, tokens);
    EXPECT_EQ(std::ssize(found.drafts), counts.num_spec_steps);
    int64_t guesses = 0, right = 0, discarded = 0, end = kPrompt;
    for (const DraftedPass& drafts : found.drafts) {
      EXPECT_EQ(drafts.drafter, "oracle");
      EXPECT_GE(drafts.position, end) << "in the answer's order";
      end = drafts.position + 1 + std::ssize(drafts.accepted);
      guesses += std::ssize(drafts.tokens);
      right += std::ssize(drafts.accepted);
      discarded += drafts.discarded;
      const int64_t first = drafts.position - kPrompt;
      const auto depth_of = [&](int32_t guess) {
        int64_t depth = 0;
        for (; guess >= 0; ++depth) {
          guess = drafts.parents.empty() ? guess - 1 : drafts.parents[static_cast<size_t>(guess)];
        }
        return depth;
      };
      for (size_t i = 0; i < drafts.accepted.size(); ++i) {
        const int32_t guess = drafts.accepted[i];
        const auto place = static_cast<size_t>(first) + i;
        EXPECT_EQ(depth_of(guess), static_cast<int64_t>(i) + 1);
        // Behind an end nothing is told of the answer.
        if (place < tokens.size()) {
          EXPECT_EQ(drafts.tokens[static_cast<size_t>(guess)], tokens[place]);
        }
      }
      // None of the guesses behind the last right one is what came.
      const size_t next = static_cast<size_t>(first) + drafts.accepted.size();
      const int32_t last = drafts.accepted.empty() ? -1 : drafts.accepted.back();
      for (int32_t guess = 0; guess < std::ssize(drafts.tokens) && next < tokens.size(); ++guess) {
        const int32_t parent =
            drafts.parents.empty() ? guess - 1 : drafts.parents[static_cast<size_t>(guess)];
        if (parent != last) continue;
        EXPECT_NE(drafts.tokens[static_cast<size_t>(guess)], tokens[next]);
      }
    }
    EXPECT_EQ(guesses, counts.num_draft_tokens);
    EXPECT_EQ(right, counts.num_accepted_draft_tokens);
    EXPECT_EQ(discarded, counts.num_discarded_tokens);
    return discarded;
  }

  int stop_behind_ = 0;  // the callback ends an answer behind so many tokens; 0: never

 private:
  std::string folder_;
};

TEST_F(DraftLog, HasWhatWasGuessedInChains) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), log_options());
  const LoggedAnswer plain = answer(*engine, {});
  EXPECT_TRUE(plain.drafts.empty());
  EXPECT_EQ(plain.report.counts.positions.discarded, 0u);
  const std::vector<int32_t> tokens = plain.result.tokens;
  for (const double probability : {0.0, 0.5, 0.9, 1.0}) {
    SCOPED_TRACE(probability);
    OracleDrafter oracle(tokens, probability, engine->summary().vocab_size);
    const LoggedAnswer found = answer(*engine, {.drafter = &oracle, .max_drafts = 5});
    const int64_t discarded = expect_consistent(found, tokens);
    EXPECT_EQ(discarded == 0, probability == 1.0);
    // Each position that was taken back has a record, and the log counts it.
    EXPECT_EQ(static_cast<int64_t>(found.report.counts.positions.discarded), discarded);
    EXPECT_EQ(std::ssize(found.records), std::ssize(plain.records) + discarded);
  }
}

TEST_F(DraftLog, HasWhatWasGuessedInTrees) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), log_options());
  const LoggedAnswer plain = answer(*engine, {});
  const std::vector<int32_t> tokens = plain.result.tokens;
  for (const double probability : {0.0, 0.5, 1.0}) {
    SCOPED_TRACE(probability);
    TreeOracle oracle(tokens, probability, engine->summary().vocab_size);
    const LoggedAnswer found =
        answer(*engine, {.drafter = &oracle, .max_drafts = 17, .max_depth = 5});
    const int64_t discarded = expect_consistent(found, tokens);
    EXPECT_GT(oracle.trees, 0);
    const auto is_tree = [](const DraftedPass& drafts) { return !drafts.parents.empty(); };
    EXPECT_TRUE(std::ranges::any_of(found.drafts, is_tree));
    // Nothing is recorded of nodes that were wrong: the guesses alone tell of them.
    EXPECT_LT(static_cast<int64_t>(found.report.counts.positions.discarded), discarded);
  }
}

TEST_F(DraftLog, CountsWhatStoodBehindAnEnd) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), log_options());
  const std::vector<int32_t> tokens = answer(*engine, {}).result.tokens;
  OracleDrafter oracle(tokens, 1, engine->summary().vocab_size);
  // The prompt's pass chooses one token, the first one with guesses the next six.
  for (const int stop_behind : {2, 3, 6, 7}) {
    SCOPED_TRACE(stop_behind);
    stop_behind_ = stop_behind;
    const LoggedAnswer found = answer(*engine, {.drafter = &oracle, .max_drafts = 5});
    const int64_t discarded =
        expect_consistent(found, {tokens.begin(), tokens.begin() + stop_behind});
    EXPECT_EQ(discarded, 7 - stop_behind);
    EXPECT_EQ(static_cast<int64_t>(found.report.counts.positions.discarded), discarded);
  }
}

/// Throws where it is told of guesses.
class ThrowingSink final : public VectorSink {
 public:
  void on_drafts(const DraftedPass&) override {
    ++told;
    throw std::runtime_error("a host's mistake");
  }
  int told = 0;
};

TEST_F(DraftLog, IsNotNeededForAnAnswer) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), log_options());
  const std::vector<int32_t> prompt = prompt_ids(kPrompt, engine->summary().vocab_size);
  const std::vector<int32_t> tokens = generate(*engine, prompt, options_of({})).tokens;
  OracleDrafter oracle(tokens, 0.8, engine->summary().vocab_size);
  const SpeculationOptions speculation{.drafter = &oracle, .max_drafts = 5};
  EXPECT_EQ(generate(*engine, prompt, options_of(speculation)).tokens, tokens);
  ThrowingSink sink;
  engine->set_audit_sink(&sink);
  EXPECT_EQ(generate(*engine, prompt, options_of(speculation)).tokens, tokens);
  engine->set_audit_sink(nullptr);
  EXPECT_GT(sink.told, 0);
}

TEST_F(DraftLog, TotalsHaveTimesAndMemory) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), log_options());
  const std::vector<int32_t> prompt = prompt_ids(kPrompt, engine->summary().vocab_size);
  const std::vector<int32_t> tokens = generate(*engine, prompt, options_of({})).tokens;
  const auto counts_of = [&](Drafter& drafter) {
    return generate(*engine, prompt, options_of({.drafter = &drafter, .max_drafts = 4}))
        .speculation;
  };
  OracleDrafter right(tokens, 1, engine->summary().vocab_size);
  const SpeculationCounts all = counts_of(right);
  EXPECT_GT(all.verify_seconds, 0);
  EXPECT_EQ(all.rejected_seconds, 0);
  OracleDrafter wrong(tokens, 0, engine->summary().vocab_size);
  const SpeculationCounts none = counts_of(wrong);
  // Four tokens of a pass of five are wrong; in the last ones, which are shorter, at least half.
  EXPECT_GT(none.rejected_seconds, none.verify_seconds / 2);
  EXPECT_LT(none.rejected_seconds, none.verify_seconds * 0.8000001);
  SpeculationCounts both = all;
  both += none;
  EXPECT_DOUBLE_EQ(both.verify_seconds, all.verify_seconds + none.verify_seconds);
  EXPECT_EQ(none.memory.weight_bytes + none.memory.kv_bytes + none.memory.index_bytes, 0u);
  for (const char* name : {"ngram", "suffix"}) {
    const auto drafter = make_drafter(name);
    const SpeculationCounts counts = counts_of(*drafter);
    // At least the text's tokens, 4 bytes each.
    EXPECT_GE(counts.memory.index_bytes, 4u * (prompt.size() + tokens.size()));
    EXPECT_EQ(counts.memory.weight_bytes + counts.memory.kv_bytes, 0u);
  }
}

}  // namespace
}  // namespace vitrine::testing
