// SPDX-License-Identifier: Apache-2.0
#include "vitrine/draft_model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/draft_text_table.h"
#include "engine/draft_spelling.h"

namespace vitrine {

namespace {

// One text, in the draft model's tokens.
struct ModelText {
  SequenceId sequence = 0;
  engine::DraftSpelling spelling;
  int64_t matched = 0;           // leading tokens of the sequence that are the text's
  std::vector<int32_t> guessed;  // behind the text, by the model, for the proposal under way
};

class DraftModel final : public Drafter {
 public:
  DraftModel(Model draft, const Tokenizer& target, bool is_same_vocabulary)
      : model_(std::move(draft)),
        spellings_(model_.tokenizer(), target, {is_same_vocabulary, model_.summary().vocab_size}) {}

  std::string_view name() const override { return "draft"; }

  DraftTextId start(const DraftText&) override {
    const SequenceId sequence = model_.create_sequence();
    return texts_.add(std::make_unique<ModelText>(ModelText{sequence, spellings_.begin(), 0, {}}));
  }
  DraftTextId fork(DraftTextId text) override {
    ModelText copy = texts_.get(text);
    copy.sequence = model_.fork(copy.sequence);
    return texts_.add(std::make_unique<ModelText>(std::move(copy)));
  }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    texts_.get(text).spelling.append(tokens);
  }
  void truncate(DraftTextId text, int64_t length) override {
    texts_.get(text).spelling.truncate(length);
  }
  void release(DraftTextId text, bool) override {
    model_.release(texts_.get(text).sequence);
    texts_.erase(text);
  }

  DraftMemory memory() const override {
    const ModelSummary& model = model_.summary();
    return {.weight_bytes = model.weight_bytes + model.mapped_bytes, .kv_bytes = model.kv_bytes};
  }

  void propose(std::span<DraftProposal> proposals) override {
    active_.clear();
    for (DraftProposal& proposal : proposals) {
      ModelText& text = texts_.get(proposal.text);
      text.guessed.clear();
      const std::span<const int32_t> known = begin(text);
      if (!known.empty()) active_.push_back({&text, core::chain_room(proposal), known});
    }
    while (!active_.empty()) step();
    for (DraftProposal& proposal : proposals) {
      ModelText& text = texts_.get(proposal.text);
      proposal.count = spellings_.guesses(
          text.spelling, text.guessed,
          proposal.tokens.first(static_cast<size_t>(core::chain_room(proposal))));
    }
  }

 private:
  struct Active {
    ModelText* text;
    int64_t wanted;                  // guesses
    std::span<const int32_t> known;  // the text, in the draft model's tokens
  };

  // Cuts the sequence to what it has of the text as it is now, its last token left out: the pass
  // that computes it guesses. Returns the text; empty where there is no room for a guess.
  std::span<const int32_t> begin(ModelText& text) {
    const std::span<const int32_t> known = text.spelling.tokens(spellings_);
    if (known.empty() || std::ssize(known) > model_.options().max_context) return {};
    const std::span<const int32_t> held = model_.tokens(text.sequence);
    text.matched = std::min(text.spelling.unchanged(), text.matched);
    while (text.matched < std::min(std::ssize(held), std::ssize(known)) &&
           held[static_cast<size_t>(text.matched)] == known[static_cast<size_t>(text.matched)]) {
      ++text.matched;
    }
    const int64_t keeps = std::min(text.matched, std::ssize(known) - 1);
    if (keeps < std::ssize(held)) model_.truncate(text.sequence, keeps);
    return known;
  }

  // One pass for all texts that want guesses: more of their text, or the guess made last.
  void step() {
    const EngineOptions& limits = model_.options();
    inputs_.clear();
    choosers_.clear();
    int64_t room = limits.max_step_tokens, rows = limits.max_logit_rows;
    for (const Active& one : active_) {
      if (room <= 0) break;
      const std::span<const int32_t> known = one.known;
      const int64_t length = model_.length(one.text->sequence);
      StepInput input;
      input.sequence = one.text->sequence;
      if (length < std::ssize(known)) {
        const int64_t count = std::min(std::ssize(known) - length, room);
        input.tokens = known.subspan(static_cast<size_t>(length), static_cast<size_t>(count));
      } else {
        input.tokens = {&one.text->guessed.back(), 1};
      }
      const bool chooses = length + std::ssize(input.tokens) >= std::ssize(known);
      if (chooses && rows == 0) continue;
      input.rows = chooses ? StepInput::Rows::kLast : StepInput::Rows::kNone;
      if (chooses) choosers_.push_back(one.text), --rows;
      room -= std::ssize(input.tokens);
      inputs_.push_back(input);
    }
    const std::span<const StepOutput> outputs = model_.step(inputs_);
    for (size_t i = 0; i < choosers_.size(); ++i) choosers_[i]->guessed.push_back(outputs[i].token);
    std::erase_if(active_, [&](const Active& one) { return is_done(one); });
  }

  bool is_done(const Active& one) {
    const std::vector<int32_t>& guessed = one.text->guessed;
    if (guessed.empty()) return false;
    return std::ssize(guessed) >= one.wanted || spellings_.is_end(guessed.back()) ||
           model_.length(one.text->sequence) >= model_.options().max_context;
  }

  Model model_;
  engine::DraftSpellings spellings_;
  core::DraftTextTable<ModelText> texts_;
  // Of the proposals under way:
  std::vector<Active> active_;
  std::vector<StepInput> inputs_;
  std::vector<ModelText*> choosers_;
};

}  // namespace

VocabularyOverlap compare_vocabularies(const Tokenizer& draft, const Tokenizer& target) {
  VocabularyOverlap overlap{.is_same = true};
  for (int32_t id = 0; id < draft.vocab_size(); ++id) {
    const std::string text = draft.token_text(id);
    if (text.empty()) continue;
    ++overlap.draft_tokens;
    const int32_t other = target.token_id(text);
    if (other >= 0) ++overlap.common;
    if (id < target.vocab_size() && other != id) overlap.is_same = false;
  }
  return overlap;
}

std::unique_ptr<Drafter> make_draft_model(Model draft, const Tokenizer& target) {
  const VocabularyOverlap overlap = compare_vocabularies(draft.tokenizer(), target);
  if (overlap.common == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                draft.path() +
                    ": the draft model's vocabulary has no token in common with the target's; "
                    "expected a model of the same language");
  }
  return std::make_unique<DraftModel>(std::move(draft), target, overlap.is_same);
}

}  // namespace vitrine
