// SPDX-License-Identifier: Apache-2.0
// Drafters of Vitrine's own, the gate, and drafters of a host's that do what they should not.
#include <functional>

#include "tests/engine/speculated_answer.h"

namespace vitrine::testing {
namespace {

class SpeculationDrafterTest : public ::testing::Test {
 protected:
  SpeculationDrafterTest() : engine_(Engine::load(shipped_model(), engine_options())) {
    asked_.prompt = prompt_ids(20, engine_->summary().vocab_size);
    asked_.options.max_new_tokens = 300;
    asked_.options.ignore_end_of_text = true;
    asked_.options.sampler.temperature = 0;
  }
  static EngineOptions engine_options() {
    EngineOptions options = test_options(1);
    options.max_context = 400;
    options.audit_mode = AuditMode::kDeferred;
    return options;
  }

  std::unique_ptr<Engine> engine_;
  AskedAnswer asked_;
};

TEST_F(SpeculationDrafterTest, NgramAndSuffixChangeNothing) {
  for (const std::string& name : drafter_names()) {
    const auto drafter = make_drafter(name), planter = make_drafter(name);
    for (const auto& [kind, sampler] : all_samplers()) {
      SCOPED_TRACE(name + " " + kind);
      asked_.options.sampler = sampler;
      const ToldAnswer plain = make_answer(*engine_, asked_);
      const ToldAnswer tree = make_answer(
          *engine_, asked_,
          {.drafter = planter.get(), .scope = "test", .max_drafts = 10, .max_depth = 4});
      expect_same_answer(plain, tree);
      EXPECT_EQ(tree.result.speculation.problem, "");
      EXPECT_GT(tree.result.speculation.num_spec_steps, 2);
      int64_t passes = 0;
      for (int run = 0; run < 2; ++run) {  // the second time an answer of the scope is there
        const ToldAnswer found =
            make_answer(*engine_, asked_, {.drafter = drafter.get(), .scope = "test"});
        expect_same_answer(plain, found);
        if (run == 1 && name == "suffix") {
          EXPECT_LT(found.result.speculation.num_passes, passes);
        }
        passes = found.result.speculation.num_passes;
      }
      if (name == "suffix") {
        EXPECT_LT(passes, 150) << "what it has answered before it knows";
      }
    }
  }
}

TEST_F(SpeculationDrafterTest, TheGateShutsOutWhatIsAlwaysWrongAndRepeatsItself) {
  const ToldAnswer plain = make_answer(*engine_, asked_);
  OracleDrafter wrong(plain.result.tokens, 0, engine_->summary().vocab_size);
  const PassCosts costs({{1, 10}, {2, 12}, {4, 15}, {8, 22}});
  const SpeculationOptions gated = {.drafter = &wrong, .costs = costs};
  const ToldAnswer found = make_answer(*engine_, asked_, gated);
  expect_same_answer(plain, found);
  const SpeculationCounts& counts = found.result.speculation;
  EXPECT_GT(counts.num_spec_steps, 3);
  EXPECT_LE(counts.num_spec_steps, 12);
  EXPECT_LE(counts.num_draft_tokens, 2 * counts.num_spec_steps) << "short ones, to try";
  EXPECT_GT(counts.num_paused_passes, 280);
  EXPECT_LE(wrong.calls, 12);

  const auto suffix = make_drafter("suffix");
  std::vector<int64_t> first;
  for (int run = 0; run < 2; ++run) {
    const ToldAnswer again =
        make_answer(*engine_, asked_, {.drafter = suffix.get(), .costs = costs});
    expect_same_answer(plain, again);
    if (run == 1) {
      EXPECT_EQ(again.result.speculation.acceptance_histogram, first);
    }
    first = again.result.speculation.acceptance_histogram;
  }
}

/// Guesses nothing, but for what a test makes of its calls.
class HostDrafter : public Drafter {
 public:
  std::string_view name() const override { return "host"; }
  DraftTextId start(const DraftText&) override {
    act("start");
    return starts_at_zero ? 0 : 1;
  }
  DraftTextId fork(DraftTextId) override { return 2; }
  void commit(DraftTextId, std::span<const int32_t> tokens) override {
    act(tokens.size() > 1 ? "prompt" : "commit");
  }
  void truncate(DraftTextId, int64_t) override { act("truncate"); }
  void propose(std::span<DraftProposal> proposals) override {
    act("propose");
    if (on_propose) on_propose(proposals[0]);
  }
  void told(DraftTextId, int32_t, int32_t) override { act("told"); }
  void release(DraftTextId, bool) override { act("release"); }

  std::string throws_in;
  int throws_at = 1;  // its call
  bool throws_number = false, starts_at_zero = false;
  std::function<void(DraftProposal&)> on_propose;
  std::map<std::string, int> calls;

 private:
  void act(const std::string& what) {
    if (++calls[what] < throws_at || what != throws_in) return;
    if (throws_number) throw 7;
    throw std::runtime_error("two\nlines");
  }
};

TEST_F(SpeculationDrafterTest, AHostsThatThrowsIsNotAskedAgain) {
  asked_.options.max_new_tokens = 40;
  const ToldAnswer plain = make_answer(*engine_, asked_);
  for (const char* where : {"start", "prompt", "commit", "propose", "told", "release"}) {
    for (const int at : {1, 3}) {
      for (const bool is_number : {false, true}) {
        SCOPED_TRACE(std::string(where) + " " + std::to_string(at));
        HostDrafter drafter;
        drafter.throws_in = where;
        drafter.throws_at = at;
        drafter.throws_number = is_number;
        drafter.on_propose = [](DraftProposal& proposal) {
          proposal.tokens[0] = 3;
          proposal.count = 1;
        };
        const ToldAnswer found = make_answer(*engine_, asked_, {.drafter = &drafter});
        expect_same_answer(plain, found);
        const std::string& problem = found.result.speculation.problem;
        const bool is_met = drafter.calls[where] >= at && std::string(where) != "release";
        EXPECT_EQ(problem.empty(), !is_met) << problem;
        EXPECT_EQ(problem.find('\n'), problem.npos);
        if (is_met) {
          EXPECT_NE(problem.find("drafter"), problem.npos) << problem;
          EXPECT_NE(problem.find(is_number ? "no std::exception" : "two lines"), problem.npos);
          EXPECT_EQ(drafter.calls[where], at);
        }
        EXPECT_LE(drafter.calls["release"], 1);
      }
    }
  }
}

TEST_F(SpeculationDrafterTest, AHostsThatGuessesWhatIsNoGuessIsNotAskedAgain) {
  asked_.options.max_new_tokens = 40;
  const ToldAnswer plain = make_answer(*engine_, asked_);
  const auto refused = [&](const std::function<void(DraftProposal&)>& propose, const char* part) {
    HostDrafter drafter;
    drafter.on_propose = propose;
    const ToldAnswer found = make_answer(*engine_, asked_, {.drafter = &drafter});
    expect_same_answer(plain, found);
    EXPECT_NE(found.result.speculation.problem.find(part), std::string::npos)
        << found.result.speculation.problem;
    EXPECT_EQ(drafter.calls["propose"], 1);
    EXPECT_EQ(found.result.speculation.num_draft_tokens, 0);
  };
  const int32_t vocab = engine_->summary().vocab_size;
  for (const int32_t id : {-1, vocab, INT32_MAX, INT32_MIN}) {
    refused(
        [id](DraftProposal& proposal) {
          proposal.tokens[0] = 1;
          proposal.tokens[1] = id;
          proposal.count = 2;
        },
        "expected ids from 0 to");
  }
  for (const int32_t count : {-1, 9, INT32_MAX, INT32_MIN}) {
    refused([count](DraftProposal& proposal) { proposal.count = count; }, "expected 0 to 8");
  }
  // One that says it has room of its own.
  std::vector<int32_t> own(100, 5);
  refused(
      [&own](DraftProposal& proposal) {
        proposal.tokens = own;
        proposal.count = 100;
      },
      "expected 0 to 8");
  HostDrafter zero;
  zero.starts_at_zero = true;
  const ToldAnswer found = make_answer(*engine_, asked_, {.drafter = &zero});
  expect_same_answer(plain, found);
  EXPECT_NE(found.result.speculation.problem.find("text 0"), std::string::npos);
}

TEST_F(SpeculationDrafterTest, OptionsOutOfRangeAreRefused) {
  HostDrafter drafter;
  const auto refused = [&](SpeculationOptions options, const char* part) {
    options.drafter = &drafter;
    GenerateOptions generation = asked_.options;
    generation.speculation = options;
    const Error error = error_of([&] { generate(*engine_, asked_.prompt, generation); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {part, "expected"})) << error.what();
  };
  refused({.max_drafts = 0}, "max_drafts");
  refused({.max_drafts = 256}, "max_drafts");
  refused({.threshold = -1}, "threshold");
  refused({.threshold = std::numeric_limits<double>::quiet_NaN()}, "threshold");
}

TEST_F(SpeculationDrafterTest, TakesATokenAloneWhereThereIsNoRoomForGuesses) {
  EngineOptions options = test_options(1, 16);
  options.max_context = 160;
  options.audit_mode = AuditMode::kDeferred;
  const auto measure = Engine::load(oracle_folder("qwen3_moe"), options);
  const auto blocks = measure->kv_blocks().second;
  options.kv_bytes = measure->summary().kv_bytes / static_cast<uint64_t>(blocks) * 14;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  const auto [free, all] = engine->kv_blocks();
  // Others hold all but three blocks.
  const std::vector<int32_t> ids = prompt_ids(150, engine->summary().vocab_size);
  std::vector<SequenceId> others;
  for (int64_t left = free - 3; left > 0;) {
    const int64_t count = std::min<int64_t>(left, 9);
    others.push_back(engine->create_sequence());
    StepInput input;
    input.sequence = others.back();
    input.tokens = std::span(ids).first(static_cast<size_t>(count * 16));
    input.rows = StepInput::Rows::kNone;
    engine->step({&input, 1});
    left -= count;
  }
  ASSERT_EQ(engine->kv_blocks().first, 3);
  AskedAnswer asked;
  asked.prompt = prompt_ids(12, engine->summary().vocab_size);
  asked.options.max_new_tokens = 100;
  asked.options.ignore_end_of_text = true;
  asked.stop_behind = 37;  // 48 positions, and the last token
  const ToldAnswer plain = make_answer(*engine, asked);
  for (const double probability : {0.0, 0.9}) {
    std::vector<int32_t> truth = plain.result.tokens;
    truth.resize(80, 3);
    OracleDrafter oracle(truth, probability, engine->summary().vocab_size);
    const ToldAnswer found = make_answer(*engine, asked, {.drafter = &oracle});
    expect_same_answer(plain, found);
    EXPECT_GT(found.result.speculation.num_spec_steps, 4);
  }
  for (const SequenceId other : others) engine->release(other);
}

}  // namespace
}  // namespace vitrine::testing
