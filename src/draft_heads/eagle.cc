// SPDX-License-Identifier: Apache-2.0
// EAGLE-3 (Li et al., arXiv 2503.01840): a chain, each guess made of the one before and of what the
// heads made of it; or a tree, a level at a time. P-EAGLE (arXiv 2602.01469): guesses of all levels
// in one pass, of a mask in place of what is not known yet.
#include <algorithm>

#include "draft_heads/eagle_network.h"
#include "draft_heads/head_text.h"

namespace vitrine::draft_heads {

namespace {

/// Rows of features that are kept of a text: a pass's, and as many again to be taken together.
constexpr int64_t kEagleWindow = 2 * (EagleNetwork::kMaxRows + 1) + 128;
/// Positions behind a text's end that its guesses may have.
constexpr int64_t kGuessSlots = EagleNetwork::kMaxRows;
/// Pairs of one text that go beside its guesses.
constexpr int64_t kPairsBeside = 8;

struct EagleText : HeadText {
  EagleText(const DraftText& about, const EagleConfig& config, int64_t width)
      : HeadText(about, width, kEagleWindow), cache(config.layer, about.max_tokens + kGuessSlots) {}

  /// Position of a slot of the cache.
  int32_t slot(int64_t position) const { return static_cast<int32_t>(position - first); }

  int64_t first = 0;   // position of the cache's first slot
  int64_t cached = 0;  // positions before this one have theirs
  EagleCache cache;
};

class EagleDrafter final : public HeadDrafter {
 public:
  EagleDrafter(const HeadSources& sources, bool is_parallel)
      : config_(read_eagle_config(sources, is_parallel)),
        is_parallel_(is_parallel),
        part_(sources.target.config.hidden_size),
        width_(part_ * std::ssize(config_.layers)),
        network_(config_, sources),
        sorted_(config_.layers) {
    std::ranges::sort(sorted_);
    for (const int layer : config_.layers) {
      parts_.push_back(std::ranges::find(sorted_, layer) - sorted_.begin());
    }
    rows_.reserve(EagleNetwork::kMaxRows);
    pairs_.reserve(EagleNetwork::kMaxRows);
    asked_.reserve(EagleNetwork::kMaxRows);
    grown_.reserve(DraftTree::kWidth);
    if (!is_parallel) return;
    const int64_t extents[] = {1, 1, width_};
    const TensorInfo& mask = sources.heads.require("mask_hidden", extents);
    mask_ = network_.fuse(sources.heads.read_f32(mask));
  }

  std::string_view name() const override { return is_parallel_ ? "peagle" : "eagle3"; }
  std::span<const int> feature_layers() const override { return sorted_; }
  void lend(core::PieceThreads* threads) override { network_.lend(threads); }

  DraftTextId start(const DraftText& about) override {
    check_room(about);
    auto text = std::make_unique<EagleText>(about, config_, width_);
    network_.reserve(about.max_tokens + kGuessSlots);
    return texts_.add(std::move(text));
  }
  DraftTextId fork(DraftTextId text) override { return texts_.fork(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    for (const int32_t token : tokens) {
      if (token >= 0 && token < config_.layer.vocab_size) continue;
      throw Error(ErrorKind::kInvalidArgument, "token " + std::to_string(token) +
                                                   " was shown to draft heads; expected 0 to " +
                                                   std::to_string(config_.layer.vocab_size - 1));
    }
    texts_.commit(text, tokens);
  }
  void release(DraftTextId text, bool) override { texts_.release(text); }
  uint64_t text_kv_bytes(int64_t max_tokens) const override {
    return EagleCache::bytes_of(config_.layer, max_tokens + kGuessSlots);
  }
  DraftMemory memory() const override {
    DraftMemory memory{.weight_bytes = network_.weight_bytes()};
    for (const auto& [id, text] : texts_.all()) {
      memory.kv_bytes += text->cache.bytes();
      memory.index_bytes += text->bytes();
    }
    return memory;
  }

  void truncate(DraftTextId id, int64_t length) override {
    EagleText& text = texts_.truncate(id, length);
    text.cached = std::min(text.cached, std::max<int64_t>(length - 1, 0));
    if (text.cached < text.features.first()) begin_anew(text);
    text.first = std::min(text.first, text.cached);
  }

  void observe(DraftTextId id, int64_t first, std::span<const float> rows) override {
    EagleText& text = texts_.get(id);
    const int64_t count = count_rows(rows, width_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = first + i;
      if (position < text.features.end()) continue;
      if (position > text.features.end()) {  // those between are not known: it begins here
        text.features.begin_at(position);
        begin_anew(text);
      }
      if (text.features.is_full()) make_room(id, text);
      float* row = text.features.append();
      for (size_t part = 0; part < parts_.size(); ++part) {
        std::copy_n(rows.data() + i * width_ + parts_[part] * part_, part_,
                    row + static_cast<int64_t>(part) * part_);
      }
      text.features.keep_prompt_row();
    }
  }

  void propose(std::span<DraftProposal> proposals) override {
    for (DraftProposal& proposal : proposals) {
      proposal.count = 0;
      EagleText& text = texts_.get(proposal.text);
      const int64_t last = text.last_pair();
      const int64_t most = limit(proposal);
      if (last < 0 || most == 0) continue;
      const int64_t own = is_parallel_ ? most : 1;
      cache_pairs(text, last - std::min(kPairsBeside, EagleNetwork::kMaxRows - own));
      const bool is_tree = !proposal.parents.empty();
      const auto needed = static_cast<size_t>(last - text.cached + own);
      if (is_tree || rows_.size() + needed > EagleNetwork::kMaxRows) guess_together();
      ask(proposal, text, last);
      if (is_tree) guess_together();
    }
    guess_together();
  }

 private:
  struct Asked {
    DraftProposal* proposal = nullptr;
    EagleText* text = nullptr;
    int64_t last = 0;  // pair
    bool goes_on = false;
  };

  /// Throws kOutOfMemory where the text takes more than is left of the engine's budget.
  void check_room(const DraftText& about) const {
    const uint64_t held = memory().kv_bytes, wanted = text_kv_bytes(about.max_tokens);
    if (held <= about.kv_bytes && wanted <= about.kv_bytes - held) return;
    throw Error(ErrorKind::kOutOfMemory,
                "draft heads take " + std::to_string(wanted) +
                    " bytes of keys and values for a "
                    "text of " +
                    std::to_string(about.max_tokens) + " tokens beside " + std::to_string(held) +
                    " for others, and " + std::to_string(about.kv_bytes) +
                    " of the engine's budget are drafters' ('draft_kv_bytes'); expected a larger "
                    "part, or shorter texts");
  }

  /// Guesses on a path.
  int64_t limit(const DraftProposal& proposal) const {
    auto most = std::min(std::ssize(proposal.tokens), int64_t{EagleNetwork::kMaxRows});
    if (!proposal.parents.empty()) {
      most = std::min<int64_t>({most, proposal.max_depth, DraftTree::kMaxDepth});
    }
    return config_.trained_guesses > 0 && is_parallel_
               ? std::min<int64_t>(most, config_.trained_guesses)
               : most;
  }

  static void begin_anew(EagleText& text) { text.first = text.cached = text.features.first(); }

  static EagleRow pair(EagleText& text, int64_t position) {
    EagleRow row;
    row.token = text.tokens[static_cast<size_t>(position) + 1];
    row.features = text.features.row(position);
    row.cache = &text.cache;
    row.slot = text.slot(position);
    row.position = static_cast<int32_t>(position);
    return row;
  }

  /// Keys and values of the pairs before `end`.
  void cache_pairs(EagleText& text, int64_t end) {
    while (text.cached < end) {
      pairs_.clear();
      for (; text.cached < end && pairs_.size() < EagleNetwork::kMaxRows; ++text.cached) {
        pairs_.push_back(pair(text, text.cached));
      }
      network_.run(pairs_);
    }
    text.features.drop_before(text.cached);
  }

  void make_room(DraftTextId id, EagleText& text) {
    // The last pair stays: guesses are made of it, again where it is asked twice.
    cache_pairs(text, std::min(text.features.end(), text.length() - 1) - 1);
    if (!text.features.is_full()) return;
    throw Error(ErrorKind::kInvalidArgument, "text " + std::to_string(id) + " of a drafter has " +
                                                 std::to_string(text.length()) +
                                                 " tokens and features up to position " +
                                                 std::to_string(text.features.end() - 1) +
                                                 "; expected its tokens before their features");
  }

  /// Adds the rows of a text's first guess; of P-EAGLE, of all.
  void ask(DraftProposal& proposal, EagleText& text, int64_t last) {
    for (int64_t position = text.cached; position <= last; ++position) {
      rows_.push_back(pair(text, position));
    }
    rows_.back().guesses = true;
    asked_.push_back({&proposal, &text, last});
    if (!is_parallel_) return;
    EagleRow mask = rows_.back();
    mask.token = config_.mask_token;
    mask.features = nullptr;
    mask.state = mask_.data();
    for (int64_t i = 1; i < limit(proposal); ++i) {
      ++mask.slot;
      ++mask.position;
      rows_.push_back(mask);
    }
  }

  void guess_together() {
    if (asked_.empty()) return;
    const bool is_tree = !asked_.front().proposal->parents.empty();
    network_.run(rows_, is_tree);
    if (is_tree) {
      grow_tree(asked_.front());
    } else if (is_parallel_) {
      take_all();
    } else {
      follow_chains();
    }
    rows_.clear();
    for (const Asked& asked : asked_) {
      // The last pair is computed again with the ones that come: its guess may be asked for twice.
      asked.text->cached = asked.last;
      asked.text->features.drop_before(asked.last);
    }
    asked_.clear();
  }

  /// Writes a guess of the last run behind the proposal's others; false where there is none.
  bool take(DraftProposal& proposal, size_t guess) {
    const int32_t token = network_.best_token(guess);
    if (token < 0) return false;
    if (on_logits) on_logits(proposal.text, proposal.count, network_.logits(guess));
    proposal.tokens[static_cast<size_t>(proposal.count++)] = token;
    return true;
  }

  void take_all() {
    size_t guess = 0;
    for (const Asked& asked : asked_) {
      const int64_t most = limit(*asked.proposal);
      bool goes_on = true;
      for (int64_t i = 0; i < most; ++i, ++guess) {
        goes_on = goes_on && take(*asked.proposal, guess);
      }
    }
  }

  void follow_chains() {
    for (Asked& asked : asked_) asked.goes_on = true;
    while (true) {
      rows_.clear();
      size_t guess = 0;
      for (Asked& asked : asked_) {
        if (!asked.goes_on) continue;
        DraftProposal& proposal = *asked.proposal;
        const size_t own = guess++;
        asked.goes_on = take(proposal, own) && proposal.count < limit(proposal);
        if (!asked.goes_on) continue;
        EagleRow row;
        row.token = proposal.tokens[static_cast<size_t>(proposal.count) - 1];
        row.state = network_.state(own);
        row.cache = &asked.text->cache;
        row.slot = asked.text->slot(asked.last) + proposal.count;
        row.position = static_cast<int32_t>(asked.last) + proposal.count;
        row.guesses = true;
        rows_.push_back(row);
      }
      if (rows_.empty()) return;
      network_.run(rows_);
    }
  }

  void grow_tree(const Asked& asked) {
    DraftProposal& proposal = *asked.proposal;
    tree_.begin(std::ssize(proposal.tokens));
    tree_.add(-1, network_.best(0), network_.tokens());
    grown_.clear();
    for (int64_t level = 1; level < limit(proposal); ++level) {
      const std::span<const int32_t> frontier = tree_.take_frontier();
      if (frontier.empty()) break;
      if (!is_parallel_) run_level(asked, static_cast<int32_t>(level), frontier);
      for (size_t i = 0; i < frontier.size(); ++i) {
        tree_.add(frontier[i], network_.best(is_parallel_ ? static_cast<size_t>(level) : i),
                  network_.tokens());
      }
    }
    tree_.write(proposal);
  }

  /// Computes the rows of guesses of one level, each behind its path.
  void run_level(const Asked& asked, int32_t level, std::span<const int32_t> frontier) {
    const auto branch_of = [](int32_t of_level, size_t place) {
      return of_level % 2 * DraftTree::kWidth + static_cast<int32_t>(place);
    };
    rows_.clear();
    for (size_t i = 0; i < frontier.size(); ++i) {
      const DraftTree::Node& node = tree_.node(frontier[i]);
      const auto parent =
          static_cast<size_t>(std::ranges::find(grown_, node.parent) - grown_.begin());
      const size_t above = level == 1 ? 0 : parent;
      const int32_t first = asked.text->slot(asked.last) + 1;
      EagleRow row;
      row.token = node.token;
      row.state = network_.state(above);
      row.cache = &asked.text->cache;
      row.slot = first + level - 1;
      row.blocks = network_.branch(asked.text->cache, branch_of(level, i),
                                   level == 1 ? -1 : branch_of(level - 1, above), first, row.slot);
      row.position = static_cast<int32_t>(asked.last) + level;
      row.guesses = true;
      rows_.push_back(row);
    }
    network_.run(rows_, true);
    grown_.assign(frontier.begin(), frontier.end());
  }

  const EagleConfig config_;
  const bool is_parallel_;
  const int64_t part_, width_;  // of one layer's features, and of all
  EagleNetwork network_;
  std::vector<int> sorted_;     // the layers, ascending, as features are shown
  std::vector<int64_t> parts_;  // of fc's columns: which of the sorted layers
  std::vector<float> mask_;     // [hidden] what fc makes of the mask
  HeadTexts<EagleText> texts_;
  std::vector<EagleRow> rows_, pairs_;
  std::vector<Asked> asked_;
  DraftTree tree_;
  std::vector<int32_t> grown_;  // its nodes whose rows the last run computed
};

std::unique_ptr<HeadDrafter> make_eagle3(const HeadSources& sources) {
  return std::make_unique<EagleDrafter>(sources, false);
}

std::unique_ptr<HeadDrafter> make_peagle(const HeadSources& sources) {
  return std::make_unique<EagleDrafter>(sources, true);
}

}  // namespace

VITRINE_REGISTER_DRAFT_HEADS("eagle3", &make_eagle3);
VITRINE_REGISTER_DRAFT_HEADS("peagle", &make_peagle);

}  // namespace vitrine::draft_heads
