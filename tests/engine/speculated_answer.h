// SPDX-License-Identifier: Apache-2.0
// Answers that are guessed ahead by a drafter that knows them, and all that is to be the same of
// them.
#pragma once

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "vitrine/audit.h"
#include "vitrine/audit_log.h"
#include "vitrine/constrain.h"
#include "vitrine/federation_engine.h"

namespace vitrine::testing {

/// Knows the answer that comes, and guesses each token of it right with a probability. Checks that
/// it is shown the text as it stands.
class OracleDrafter : public Drafter {
 public:
  OracleDrafter(std::vector<int32_t> truth, double probability, int32_t vocab)
      : truth_(std::move(truth)), right_(probability), vocab_(vocab) {}
  std::string_view name() const override { return "oracle"; }
  DraftTextId start(const DraftText& text) override {
    prompt_tokens_ = text.prompt_tokens;
    max_tokens_ = text.max_tokens;
    texts_[++last_];
    return last_;
  }
  DraftTextId fork(DraftTextId text) override {
    texts_[++last_] = texts_[text];
    return last_;
  }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    std::vector<int32_t>& all = texts_.at(text);
    all.insert(all.end(), tokens.begin(), tokens.end());
    EXPECT_LE(std::ssize(all), max_tokens_);
  }
  void truncate(DraftTextId text, int64_t length) override {
    ASSERT_LE(length, std::ssize(texts_.at(text)));
    texts_[text].resize(static_cast<size_t>(length));
  }
  void propose(std::span<DraftProposal> proposals) override {
    ++calls;
    for (DraftProposal& proposal : proposals) {
      const size_t made = texts_.at(proposal.text).size() - static_cast<size_t>(prompt_tokens_);
      for (size_t i = 0; i < proposal.tokens.size() && made + i < truth_.size(); ++i) {
        const int32_t token = truth_[made + i];
        const bool is_right = std::uniform_real_distribution<>()(random_) < right_;
        proposal.tokens[i] = is_right ? token : (token + 1) % vocab_;
        proposal.count = static_cast<int32_t>(i) + 1;
      }
    }
  }
  void told(DraftTextId, int32_t proposed, int32_t accepted) override {
    EXPECT_LE(accepted, proposed);
    checked += proposed;
  }
  void release(DraftTextId text, bool is_whole) override {
    shown = texts_.at(text);
    was_whole = is_whole;
    texts_.erase(text);
  }
  size_t num_texts() const { return texts_.size(); }

  int64_t calls = 0, checked = 0;
  std::vector<int32_t> shown;  // of the text that went last
  bool was_whole = false;

 private:
  const std::vector<int32_t> truth_;
  const double right_;
  const int32_t vocab_;
  std::mt19937 random_{7};
  int64_t prompt_tokens_ = 0, max_tokens_ = 0;
  DraftTextId last_ = 0;
  std::map<DraftTextId, std::vector<int32_t>> texts_;
};

/// What is asked for, but for the drafter.
struct AskedAnswer {
  std::string name;
  std::vector<int32_t> prompt;
  GenerateOptions options;
  std::optional<Grammar> grammar = {};
  int stop_behind = 0;  // the callback ends it behind so many tokens; 0: never
};

struct ToldAnswer {
  GenerateResult result;
  struct Event {
    int32_t token;
    int64_t position;
    int32_t attempt;
    bool is_complete;
    size_t logprobs;
    bool operator==(const Event&) const = default;
  };
  std::vector<Event> events;
  std::map<int64_t, TokenRecord> records;  // by position, what stands at the end
};

inline ToldAnswer make_answer(Stepper& stepper, const AskedAnswer& asked,
                              const SpeculationOptions& speculation = {}) {
  VectorSink sink;
  stepper.set_audit_sink(&sink);
  GenerateOptions options = asked.options;
  options.speculation = speculation;
  const auto constraint = asked.grammar ? asked.grammar->start() : nullptr;
  options.constraint = constraint.get();
  options.sequence = stepper.create_sequence();
  ToldAnswer told;
  told.result = generate(stepper, asked.prompt, options, [&](const TokenEvent& event) {
    told.events.push_back(
        {event.token, event.position, event.attempt, event.is_complete, event.logprobs.size()});
    return asked.stop_behind == 0 || std::ssize(told.events) < asked.stop_behind;
  });
  const int64_t length = stepper.length(options.sequence);
  EXPECT_EQ(length, std::ssize(asked.prompt) + std::ssize(told.result.tokens) - 1);
  for (TokenRecord& record : sink.take()) {
    if (record.position < length) told.records[record.position] = std::move(record);
  }
  stepper.set_audit_sink(nullptr);
  stepper.release(options.sequence);
  return told;
}

/// Makes answers side by side, each step of all that are open: so many tokens and rows of each at
/// most. Returns how many steps that took.
inline int64_t answer_together(Stepper& stepper, std::vector<Generation>& answers, int64_t tokens,
                               int64_t rows) {
  for (int64_t steps = 0;; ++steps) {
    std::vector<Generation*> open;
    for (Generation& one : answers) {
      if (!one.finished()) open.push_back(&one);
    }
    if (open.empty()) return steps;
    Generation::draft(open);
    std::vector<StepInput> inputs;
    inputs.reserve(open.size());
    for (Generation* one : open) inputs.push_back(one->next_input(tokens, rows));
    std::span<const StepOutput> outputs = stepper.step(inputs);
    for (size_t i = 0; i < open.size(); ++i) {
      const size_t own = inputs[i].rows == StepInput::Rows::kNone
                             ? 0
                             : static_cast<size_t>(inputs[i].num_drafts) + 1;
      open[i]->accept(outputs.first(own));
      outputs = outputs.subspan(own);
    }
  }
}

/// Everything but times.
inline void expect_same_answer(const ToldAnswer& plain, const ToldAnswer& found) {
  EXPECT_EQ(plain.result.tokens, found.result.tokens);
  EXPECT_EQ(plain.result.reason, found.result.reason);
  EXPECT_EQ(plain.result.is_complete, found.result.is_complete);
  EXPECT_TRUE(plain.events == found.events);
  const ConstraintCounts &a = plain.result.constraint, &b = found.result.constraint;
  EXPECT_EQ(a.masks, b.masks);
  EXPECT_EQ(a.forced, b.forced);
  EXPECT_EQ(a.jumped, b.jumped);
  EXPECT_EQ(a.rejections, b.rejections);
  EXPECT_EQ(a.limited, b.limited);
  EXPECT_EQ(a.deadlocks, b.deadlocks);
  EXPECT_EQ(a.retries, b.retries);
  EXPECT_EQ(a.rejected_answers, b.rejected_answers);
  EXPECT_EQ(plain.result.failures.size(), found.result.failures.size());
  ASSERT_EQ(plain.result.logprobs.size(), found.result.logprobs.size());
  for (size_t i = 0; i < plain.result.logprobs.size(); ++i) {
    EXPECT_EQ(plain.result.logprobs[i].token, found.result.logprobs[i].token);
    EXPECT_EQ(plain.result.logprobs[i].logprob, found.result.logprobs[i].logprob);
    EXPECT_EQ(plain.result.logprobs[i].best, found.result.logprobs[i].best);
  }
  ASSERT_EQ(plain.records.size(), found.records.size());
  for (const auto& [position, record] : plain.records) {
    SCOPED_TRACE("position " + std::to_string(position));
    const auto other = found.records.find(position);
    ASSERT_NE(other, found.records.end());
    EXPECT_EQ(record_digest(record), record_digest(other->second));
    const PredictionRecord &one = record.prediction, &two = other->second.prediction;
    ASSERT_EQ(record.has_prediction, other->second.has_prediction);
    if (!record.has_prediction) continue;
    EXPECT_EQ(one.generated, two.generated);
    EXPECT_EQ(one.sampled.candidates, two.sampled.candidates);
    EXPECT_EQ(one.sampled.probability, two.sampled.probability);
    EXPECT_EQ(one.constraint.allowed, two.constraint.allowed);
    EXPECT_EQ(one.constraint.removed, two.constraint.removed);
    EXPECT_EQ(one.constraint.is_limited, two.constraint.is_limited);
    EXPECT_EQ(one.constraint.first_ruled_out, two.constraint.first_ruled_out);
    EXPECT_EQ(one.constraint.attempt, two.constraint.attempt);
  }
}

/// The answer, and the same guessed ahead by an oracle that is right never, often and always.
/// Returns how many guesses were right in all.
inline int64_t expect_same_however_guessed(Stepper& stepper, const AskedAnswer& asked,
                                           std::vector<int32_t> most = {1, 8}) {
  SCOPED_TRACE(asked.name);
  const ToldAnswer plain = make_answer(stepper, asked);
  int64_t accepted = 0;
  for (const double probability : {0.0, 0.5, 0.9, 1.0}) {
    for (const int32_t drafts : most) {
      SCOPED_TRACE(std::to_string(drafts) + " drafts, each right with " +
                   std::to_string(probability));
      OracleDrafter oracle(plain.result.tokens, probability, stepper.summary().vocab_size);
      const ToldAnswer found =
          make_answer(stepper, asked, {.drafter = &oracle, .max_drafts = drafts});
      expect_same_answer(plain, found);
      const SpeculationCounts& counts = found.result.speculation;
      EXPECT_EQ(counts.problem, "");
      EXPECT_EQ(oracle.num_texts(), 0U);
      EXPECT_EQ(oracle.checked, counts.num_draft_tokens);
      std::vector<int32_t> shown = asked.prompt;
      shown.insert(shown.end(), plain.result.tokens.begin(), plain.result.tokens.end());
      if (asked.options.max_new_tokens > 1) {
        EXPECT_EQ(oracle.shown, shown);
      }
      // Another attempt may have had what is wrong in the last one.
      if (probability == 0.0 && asked.options.validator_retries == 0) {
        EXPECT_EQ(counts.num_accepted_draft_tokens, 0);
      }
      accepted += counts.num_accepted_draft_tokens;
    }
  }
  return accepted;
}

inline std::vector<std::pair<std::string, SamplerOptions>> all_samplers() {
  std::vector<std::pair<std::string, SamplerOptions>> all;
  const auto add = [&](const char* name, auto&& change) {
    SamplerOptions options;
    options.seed = 11;
    options.temperature = 0.9F;
    change(options);
    all.emplace_back(name, options);
  };
  add("greedy", [](SamplerOptions& o) { o.temperature = 0; });
  add("drawn", [](SamplerOptions&) {});
  add("filters", [](SamplerOptions& o) { o.top_k = 40, o.top_p = 0.9F, o.min_p = 0.02F; });
  add("penalties", [](SamplerOptions& o) {
    o.repetition_penalty = 1.3F, o.dry_multiplier = 0.8F, o.penalty_window = 17;
  });
  add("greedy penalties",
      [](SamplerOptions& o) { o.temperature = 0, o.repetition_penalty = 1.2F; });
  add("mirostat", [](SamplerOptions& o) { o.mirostat = 2; });
  return all;
}

/// A federation of two checkpoints.
inline FederationSpec two_specialists() {
  FederationSpec spec;
  spec.path = "federation.json";
  spec.specialists = {{"moe", oracle_folder("qwen3_moe"), ""},
                      {"dense", oracle_folder("llama"), ""}};
  spec.combiner.weights = {0.4, 0.6};
  return spec;
}

}  // namespace vitrine::testing
