// SPDX-License-Identifier: Apache-2.0
#include "vitrine/drafters.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/draft_text_table.h"
#include "draft_heads/draft_tree.h"
#include "engine/draft/draft_budget.h"
#include "engine/draft/draft_spelling.h"
#include "engine/engine_options.h"
#include "engine/run/top_choices.h"
#include "model/architecture.h"

namespace vitrine {

namespace {

// One text, in the draft model's tokens.
struct ModelText {
  SequenceId sequence = 0;
  engine::DraftSpelling spelling;
  int64_t matched = 0;           // leading tokens of the sequence that are the text's
  std::vector<int32_t> guessed;  // behind the text, by the model, for the proposal under way
  const std::atomic<bool>* cancelled = nullptr;  // of its answer
};

// A tree of guesses: the model's choices one behind another, and beside each what else it thought
// likely, which costs no pass of its own.
class ChoiceTree {
 public:
  explicit ChoiceTree(int32_t vocab_size) {
    auto best = std::make_unique<engine::TopChoices>(vocab_size);
    best_ = best.get();
    sampler_.add(std::move(best));
  }
  void begin(int64_t room) {
    tree_.begin(room);
    last_ = -1;
  }
  SamplerPipeline& sampler() { return sampler_; }
  // Takes in the row that was sampled last. Returns what is to be computed next; -1 where no guess
  // behind it would be kept.
  int32_t grow() {
    tree_.add(last_, best_->best(), {});
    const std::span<const int32_t> newest = tree_.take_frontier();
    if (newest.empty()) return -1;
    last_ = newest.front();
    return tree_.node(last_).token;
  }
  void write(DraftProposal& proposal) { tree_.write(proposal); }

 private:
  SamplerPipeline sampler_;
  engine::TopChoices* best_ = nullptr;  // its stage
  draft_heads::DraftTree tree_;
  int32_t last_ = -1;  // of the tree, that is computed next
};

class DraftModel final : public Drafter {
 public:
  DraftModel(Model draft, const Tokenizer& target, bool is_same_vocabulary)
      : model_(std::move(draft)),
        tree_vocab_size_(is_same_vocabulary ? target.vocab_size() : 0),
        spellings_(model_.tokenizer(), target, {is_same_vocabulary, model_.summary().vocab_size}) {}

  std::string_view name() const override { return "draft"; }

  DraftTextId start(const DraftText& text) override {
    const SequenceId sequence = model_.create_sequence();
    return texts_.add(std::make_unique<ModelText>(
        ModelText{sequence, spellings_.begin(), 0, {}, text.cancelled}));
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
    ModelText& cut = texts_.get(text);
    cut.spelling.truncate(length);
    cut.matched = std::min(cut.matched, length);  // what comes behind may be something else
  }
  void release(DraftTextId text, bool) override {
    model_.release(texts_.get(text).sequence);
    texts_.erase(text);
  }

  DraftMemory memory() const override {
    const ModelSummary& model = model_.summary();
    return {.weight_bytes = model.weight_bytes + model.mapped_bytes,
            .kv_bytes = model_.options().kv_bytes};
  }

  void propose(std::span<DraftProposal> proposals) override {
    active_.clear();
    for (size_t i = 0; i < proposals.size(); ++i) {
      ModelText& text = texts_.get(proposals[i].text);
      text.guessed.clear();
      ChoiceTree* const tree = begin_tree(i, proposals[i]);
      const std::span<const int32_t> known = begin(text);
      if (known.empty()) continue;
      active_.push_back({&text, core::chain_room(proposals[i]), known, tree});
    }
    while (!active_.empty()) step();
    for (size_t i = 0; i < proposals.size(); ++i) write(i, proposals[i]);
  }

 private:
  struct Active {
    ModelText* text;
    int64_t wanted;                  // guesses, of a tree those on a path
    std::span<const int32_t> known;  // the text, in the draft model's tokens
    ChoiceTree* tree;                // null: it guesses a chain
    bool is_whole = false;           // what it guesses
  };

  // Tokens of another vocabulary are spelt anew, which the paths of a tree have no form for.
  bool takes_tree(const DraftProposal& proposal) const {
    return !proposal.parents.empty() && tree_vocab_size_ > 0;
  }

  ChoiceTree* begin_tree(size_t index, const DraftProposal& proposal) {
    if (!takes_tree(proposal)) return nullptr;
    while (trees_.size() <= index) trees_.push_back(std::make_unique<ChoiceTree>(tree_vocab_size_));
    trees_[index]->begin(std::ssize(proposal.tokens));
    return trees_[index].get();
  }

  void write(size_t index, DraftProposal& proposal) {
    if (takes_tree(proposal)) return trees_[index]->write(proposal);
    const ModelText& text = texts_.get(proposal.text);
    proposal.count =
        spellings_.guesses(text.spelling, text.guessed,
                           proposal.tokens.first(static_cast<size_t>(core::chain_room(proposal))));
  }

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
    for (Active& one : active_) {
      if (room <= 0) break;
      const std::span<const int32_t> known = one.known;
      const int64_t length = model_.length(one.text->sequence);
      StepInput input;
      input.sequence = one.text->sequence;
      input.cancelled = one.text->cancelled;
      if (length < std::ssize(known)) {
        const int64_t count = std::min(std::ssize(known) - length, room);
        input.tokens = known.subspan(static_cast<size_t>(length), static_cast<size_t>(count));
      } else {
        input.tokens = {&one.text->guessed.back(), 1};
      }
      const bool chooses = length + std::ssize(input.tokens) >= std::ssize(known);
      if (chooses && rows == 0) continue;
      input.rows = chooses ? StepInput::Rows::kLast : StepInput::Rows::kNone;
      if (chooses && one.tree != nullptr) input.sampler = &one.tree->sampler();
      if (chooses) choosers_.push_back(&one), --rows;
      room -= std::ssize(input.tokens);
      inputs_.push_back(input);
    }
    const std::span<const StepOutput> outputs = model_.step(inputs_);
    if (!model_.failures().empty()) std::rethrow_exception(model_.failures().front().error);
    for (size_t i = 0; i < choosers_.size(); ++i) {
      Active& one = *choosers_[i];
      const int32_t next = one.tree != nullptr ? one.tree->grow() : outputs[i].token;
      one.is_whole = next < 0;
      if (next >= 0) one.text->guessed.push_back(next);
    }
    std::erase_if(active_, [&](const Active& one) { return is_done(one); });
  }

  bool is_done(const Active& one) {
    const std::vector<int32_t>& guessed = one.text->guessed;
    if (one.is_whole) return true;
    if (guessed.empty()) return false;
    return std::ssize(guessed) >= one.wanted || spellings_.is_end(guessed.back()) ||
           model_.length(one.text->sequence) >= model_.options().max_context;
  }

  Model model_;
  const int32_t tree_vocab_size_;  // of the target's tokens, where a tree may be guessed; else 0
  engine::DraftSpellings spellings_;
  core::DraftTextTable<ModelText> texts_;
  // The members below belong to the proposals under way.
  std::vector<Active> active_;
  std::vector<StepInput> inputs_;
  std::vector<Active*> choosers_;
  std::vector<std::unique_ptr<ChoiceTree>> trees_;  // by proposal; kept
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

EngineOptions draft_model_options(const std::string& path, const EngineOptions& target) {
  constexpr int kStepTokens = 512;
  const Checkpoint checkpoint = Checkpoint::open(path);
  const ModelConfig config = parse_model_config(checkpoint);
  EngineOptions options;
  options.device = target.device;
  options.kernels = target.kernels;
  options.threads = target.threads;
  options.lenient_weights = target.lenient_weights;
  options.max_context = static_cast<int>(std::min<int64_t>(
      target.max_context > 0 ? target.max_context : config.max_position_embeddings,
      config.max_position_embeddings));
  options.max_sequences = target.max_sequences;
  options.max_step_tokens = std::min(kStepTokens, options.max_context);
  options.audit_mode = AuditMode::kNone;
  options.cancelled = target.cancelled;
  if (!target.draft_kv_bytes) return options;
  ops::Graph graph = model::build_graph(checkpoint, config);
  engine::DraftNeed need;
  need.add(engine::resolve_options(options, checkpoint, config, graph), graph);
  options.kv_bytes = engine::draft_budget(path + ": the draft model", need, target);
  return options;
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
