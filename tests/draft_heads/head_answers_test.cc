// SPDX-License-Identifier: Apache-2.0
// Answers that heads guess ahead: they are the ones without, and heads are shown what the model
// made of each position.
#include "tests/draft_heads/head_folders.h"
#include "tests/engine/speculated_answer.h"
#include "vitrine/drafters.h"

namespace vitrine::testing {
namespace {

/// Passes all on, and looks at what is guessed.
class WatchedDrafter final : public Drafter {
 public:
  explicit WatchedDrafter(std::unique_ptr<Drafter> drafter) : drafter_(std::move(drafter)) {}
  std::string_view name() const override { return drafter_->name(); }
  std::span<const int> feature_layers() const override { return drafter_->feature_layers(); }
  DraftTextId start(const DraftText& about) override { return drafter_->start(about); }
  DraftTextId fork(DraftTextId text) override { return drafter_->fork(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    drafter_->commit(text, tokens);
    if (!tokens.empty()) newest_[text] = tokens.back();
  }
  void truncate(DraftTextId text, int64_t length) override { drafter_->truncate(text, length); }
  void observe(DraftTextId text, int64_t first, std::span<const float> rows) override {
    drafter_->observe(text, first, rows);
  }
  void told(DraftTextId text, int32_t proposed, int32_t accepted) override {
    drafter_->told(text, proposed, accepted);
  }
  void release(DraftTextId text, bool is_whole) override { drafter_->release(text, is_whole); }
  void propose(std::span<DraftProposal> proposals) override {
    drafter_->propose(proposals);
    for (const DraftProposal& proposal : proposals) {
      ++asked;
      guessed += proposal.count > 0 ? 1 : 0;
      newest_again += proposal.count > 0 && proposal.tokens[0] == newest_[proposal.text] ? 1 : 0;
    }
  }

  int64_t asked = 0, guessed = 0;
  int64_t newest_again = 0;  // guesses that are the text's last token

 private:
  std::unique_ptr<Drafter> drafter_;
  std::map<DraftTextId, int32_t> newest_;
};

EngineOptions head_options(const Drafter& drafter) {
  EngineOptions options = test_options(2, 16);
  options.max_context = 96;
  options.max_step_tokens = 12;  // prompts come in chunks
  options.max_logit_rows = 12;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  options.feature_layers.assign(drafter.feature_layers().begin(), drafter.feature_layers().end());
  return options;
}

AskedAnswer ask_heads(const Stepper& stepper, const std::string& name,
                      const SamplerOptions& sampler) {
  AskedAnswer asked;
  asked.name = name;
  asked.prompt = prompt_ids(29, stepper.summary().vocab_size);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = 60;
  asked.options.ignore_end_of_text = true;
  return asked;
}

HeadSizes sizes_of(const std::string& model) {
  const ModelFacts config = read_model_facts(Checkpoint::open(model));
  return {config.hidden_size, config.vocab_size, config.vocab_size / 2};
}

// Blocks of zeros give the model's own normed state to its own head: what it gives is the token
// that greedy choice has just taken there, the newest one.
TEST(HeadAnswers, HeadsSeeTheStateThatTheNewestTokenWasChosenBy) {
  for (const std::string& model :
       {oracle_folder("llama"), oracle_folder("qwen3_moe"), shipped_model()}) {
    SCOPED_TRACE(model);
    const int64_t hidden = sizes_of(model).hidden;
    const TemporaryFolder folder;
    HeadTensors tensors;
    for (const std::string head : {"0", "1", "2"}) {
      add_tensor(tensors, "blocks." + head + ".layers.0.weight", {hidden, hidden}, 0.0F);
    }
    write_checkpoint(folder / "heads", medusa_config(), tensors);
    WatchedDrafter watched(make_head_drafter("medusa", folder / "heads", model));
    const auto engine = Engine::load(model, head_options(watched));
    const AskedAnswer asked = ask_heads(*engine, "greedy", all_samplers()[0].second);
    const ToldAnswer found = make_answer(*engine, asked, {.drafter = &watched});
    expect_same_answer(make_answer(*engine, asked), found);
    EXPECT_EQ(found.result.speculation.problem, "");
    EXPECT_GT(watched.guessed, 10);
    EXPECT_EQ(watched.newest_again, watched.guessed);
  }
}

TEST(HeadAnswers, ChangeNothingWithAnySampler) {
  for (const std::string& model : {oracle_folder("llama"), shipped_model()}) {
    const HeadSizes sizes = sizes_of(model);
    const TemporaryFolder folder;
    write_checkpoint(folder / "eagle3", eagle_config(sizes), eagle_tensors(false, sizes));
    write_checkpoint(folder / "peagle", eagle_config(sizes), eagle_tensors(true, sizes));
    for (const std::string kind : {"eagle3", "peagle"}) {
      SCOPED_TRACE(kind + " " + model);
      WatchedDrafter watched(make_head_drafter(kind, folder / kind, model, {{2, 0, 1}}));
      const auto engine = Engine::load(model, head_options(watched));
      for (const auto& [name, sampler] : all_samplers()) {
        SCOPED_TRACE(name);
        const AskedAnswer asked = ask_heads(*engine, name, sampler);
        const ToldAnswer plain = make_answer(*engine, asked);
        for (const int32_t depth : {0, 4}) {  // a chain, a tree
          const ToldAnswer found = make_answer(
              *engine, asked, {.drafter = &watched, .max_drafts = 7, .max_depth = depth});
          expect_same_answer(plain, found);
          EXPECT_EQ(found.result.speculation.problem, "");
          EXPECT_GT(found.result.speculation.num_draft_tokens, 20);
        }
      }
      EXPECT_GT(watched.guessed, watched.asked / 2);
    }
  }
}

TEST(HeadAnswers, GoOnWithoutGuessesWhereNothingIsShown) {
  const std::string model = oracle_folder("llama");
  const HeadSizes sizes = sizes_of(model);
  const TemporaryFolder folder;
  write_checkpoint(folder / "heads", eagle_config(sizes), eagle_tensors(false, sizes));
  const auto heads = make_head_drafter("eagle3", folder / "heads", model, {{0, 1, 2}});
  EngineOptions options = head_options(*heads);
  options.feature_layers.clear();
  const auto engine = Engine::load(model, options);
  const AskedAnswer asked = ask_heads(*engine, "greedy", all_samplers()[0].second);
  const ToldAnswer found = make_answer(*engine, asked, {.drafter = heads.get()});
  expect_same_answer(make_answer(*engine, asked), found);
  EXPECT_EQ(found.result.speculation.num_draft_tokens, 0);
  EXPECT_NE(found.result.speculation.problem.find("feature_layers"), std::string::npos);
}

}  // namespace
}  // namespace vitrine::testing
