// SPDX-License-Identifier: Apache-2.0
// Prompt look-up (Saxena 2023): what followed the newest of the longest pieces of the text that are
// the same as its end.
#include <algorithm>

#include "draft_texts.h"
#include "registry.h"

namespace vitrine::speculate {

namespace {

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const DrafterOptions& options) : texts_(options.min_match) {}
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
      proposal.count = guess(texts_.get(proposal.text).index, proposal.tokens);
    }
  }

 private:
  static int32_t guess(const TokenIndex& index, std::span<int32_t> tokens) {
    std::array<TokenIndex::Match, 8> matches;
    const auto context = index.last(std::min<int64_t>(index.size(), TokenIndex::kMaxMatch));
    const size_t found = index.find(context, matches);
    if (found == 0) return 0;
    const TokenIndex::Match& best =
        *std::ranges::max_element(std::span(matches).first(found), {}, &TokenIndex::Match::length);
    // A piece that reaches into the end of the text goes on with what was just guessed.
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t place = best.next + static_cast<int64_t>(i);
      tokens[i] = place < index.size() ? index.token(place)
                                       : tokens[static_cast<size_t>(place - index.size())];
    }
    return static_cast<int32_t>(tokens.size());
  }

  DraftTexts texts_;
};

std::unique_ptr<Drafter> make_ngram_drafter(const DrafterOptions& options) {
  return std::make_unique<NgramDrafter>(options);
}

}  // namespace

VITRINE_REGISTER_DRAFTER("ngram", &make_ngram_drafter);

}  // namespace vitrine::speculate
