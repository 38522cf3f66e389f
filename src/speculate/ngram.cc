// SPDX-License-Identifier: Apache-2.0
// Prompt look-up (Saxena 2023): what followed the newest of the longest pieces of the text that are
// the same as its end. As a tree also what followed the others, as far as there is room.
#include <algorithm>

#include "draft_texts.h"
#include "registry.h"

namespace vitrine::speculate {

namespace {

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const DrafterOptions& options) : texts_(options.min_match) {
    path_.reserve(static_cast<size_t>(kMaxDrafts));
  }
  std::string_view name() const override { return "ngram"; }
  DraftTextId start(const DraftText& text) override { return texts_.start(text); }
  DraftTextId fork(DraftTextId text) override { return texts_.fork(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    texts_.commit(text, tokens);
  }
  void truncate(DraftTextId text, int64_t length) override { texts_.truncate(text, length); }
  void release(DraftTextId text, bool) override { texts_.release(text); }
  DraftMemory memory() const override { return {.index_bytes = texts_.bytes()}; }

  void propose(std::span<DraftProposal> proposals) override {
    for (DraftProposal& proposal : proposals) {
      const TokenIndex& index = texts_.get(proposal.text).index;
      std::array<TokenIndex::Match, kMaxPlaces> found;
      const auto context = index.last(std::min<int64_t>(index.size(), TokenIndex::kMaxMatch));
      const auto matches = std::span(found).first(index.find(context, found));
      std::ranges::sort(matches, {}, [](const TokenIndex::Match& match) {
        return std::pair(-match.length, -match.next);
      });
      if (proposal.parents.empty()) {
        if (!matches.empty()) guess(index, matches.front().next, proposal.tokens);
        proposal.count = matches.empty() ? 0 : static_cast<int32_t>(proposal.tokens.size());
        continue;
      }
      path_.resize(static_cast<size_t>(core::chain_room(proposal)));
      for (const TokenIndex::Match& match : matches) {
        guess(index, match.next, path_);
        add_path(path_, proposal);
      }
    }
  }

 private:
  static constexpr size_t kMaxPlaces = 16;

  // Writes what stands at `next` and behind it, as much as there is room for.
  static void guess(const TokenIndex& index, int64_t next, std::span<int32_t> tokens) {
    // A piece that reaches into the end of the text goes on with what was just guessed.
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t place = next + static_cast<int64_t>(i);
      tokens[i] = place < index.size() ? index.token(place)
                                       : tokens[static_cast<size_t>(place - index.size())];
    }
  }

  // Adds what a tree does not have of these, as long as there is room.
  static void add_path(std::span<const int32_t> path, DraftProposal& proposal) {
    int32_t parent = -1;
    for (const int32_t token : path) {
      int32_t node = 0;
      while (node < proposal.count && (proposal.parents[static_cast<size_t>(node)] != parent ||
                                       proposal.tokens[static_cast<size_t>(node)] != token)) {
        ++node;
      }
      const auto at = static_cast<size_t>(node);
      if (at == proposal.tokens.size()) return;
      if (node == proposal.count) {
        proposal.parents[at] = parent;
        proposal.tokens[at] = token;
        ++proposal.count;
      }
      parent = node;
    }
  }

  DraftTexts texts_;
  std::vector<int32_t> path_;  // of the tree under way
};

std::unique_ptr<Drafter> make_ngram_drafter(const DrafterOptions& options) {
  return std::make_unique<NgramDrafter>(options);
}

}  // namespace

VITRINE_REGISTER_DRAFTER("ngram", &make_ngram_drafter);

}  // namespace vitrine::speculate
