// SPDX-License-Identifier: Apache-2.0
// Suffix decoding (Oliaro et al., arXiv 2411.04975): by what followed the end of the text before,
// in the text itself and in finished answers of its scope. For each length of match the likeliest
// continuation is taken token by token, as long as it is likely enough and no longer than the
// match; of all, the one whose tokens are expected to be right most often. As a tree it is the
// likeliest of all (continuation_tree.h).
#include <algorithm>
#include <array>
#include <map>

#include "continuation_tree.h"
#include "draft_texts.h"
#include "registry.h"

namespace vitrine::speculate {

namespace {

// Places that are looked at in one index: the longest matches, of each length the newest.
constexpr size_t kMaxPlaces = ContinuationTree::kMaxPlaces / 2;
constexpr size_t kMaxLengths = ContinuationTree::kMaxLengths;

/// Finished answers of one scope.
struct SharedAnswers {
  TokenIndex index;
  uint64_t last_use = 0;
};

class SuffixDrafter final : public Drafter {
 public:
  explicit SuffixDrafter(const DrafterOptions& options)
      : options_(options), texts_(options.min_match) {}
  std::string_view name() const override { return "suffix"; }
  DraftTextId start(const DraftText& text) override { return texts_.start(text); }
  DraftTextId fork(DraftTextId text) override { return texts_.fork(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    texts_.commit(text, tokens);
  }
  void truncate(DraftTextId text, int64_t length) override { texts_.truncate(text, length); }

  DraftMemory memory() const override {
    DraftMemory memory{.index_bytes = texts_.bytes()};
    for (const auto& [name, answers] : scopes_) memory.index_bytes += answers.index.bytes();
    return memory;
  }
  void release(DraftTextId text, bool is_whole) override {
    const IndexedText& whole = texts_.get(text);
    const int64_t answer = whole.index.size() - whole.about.prompt_tokens;
    if (is_whole && answer > 0 && !whole.about.scope.empty() && options_.shared_tokens > 0) {
      TokenIndex& shared = scope(whole.about.scope).index;
      for (const int32_t token : whole.index.last(answer)) shared.append(token);
      shared.append(kNoToken);
    }
    texts_.release(text);
  }

  void propose(std::span<DraftProposal> proposals) override {
    for (DraftProposal& proposal : proposals) {
      const IndexedText& text = texts_.get(proposal.text);
      const auto context =
          text.index.last(std::min<int64_t>(text.index.size(), TokenIndex::kMaxMatch));
      num_places_ = 0;
      add_places(text.index, context);
      if (!text.about.scope.empty()) {
        if (const auto found = scopes_.find(text.about.scope); found != scopes_.end()) {
          found->second.last_use = ++uses_;
          add_places(found->second.index, context);
        }
      }
      const auto all = std::span(places_).first(num_places_);
      std::ranges::sort(
          all, {}, [](const MatchedPlace& place) { return std::pair(-place.length, place.rank); });
      if (proposal.parents.empty()) {
        proposal.count = guess(all, proposal.tokens);
      } else {
        tree_.guess(all, static_cast<double>(options_.min_probability), proposal);
      }
    }
  }

 private:
  SharedAnswers& scope(const std::string& name) {
    auto found = scopes_.find(name);
    if (found == scopes_.end()) {
      if (scopes_.size() >= static_cast<size_t>(options_.max_scopes)) {
        scopes_.erase(std::ranges::min_element(
            scopes_, {}, [](const auto& entry) { return entry.second.last_use; }));
      }
      found =
          scopes_
              .emplace(name, SharedAnswers{TokenIndex(options_.shared_tokens, options_.min_match)})
              .first;
    }
    found->second.last_use = ++uses_;
    return found->second;
  }

  void add_places(const TokenIndex& index, std::span<const int32_t> context) {
    std::array<TokenIndex::Match, kMaxPlaces> matches;
    const size_t found = index.find(context, matches);
    for (size_t i = 0; i < found; ++i) {
      places_[num_places_] = {&index, matches[i].next, matches[i].length,
                              static_cast<int32_t>(num_places_)};
      ++num_places_;
    }
  }

  /// `all`: the longest matches first.
  int32_t guess(std::span<const MatchedPlace> all, std::span<int32_t> tokens) {
    int32_t best_count = 0;
    double best_score = 0;
    size_t behind = 0;
    for (size_t lengths = 0; lengths < kMaxLengths && behind < all.size(); ++lengths) {
      const int32_t length = all[behind].length;
      while (behind < all.size() && all[behind].length == length) ++behind;
      const size_t most = std::min(tokens.size(), static_cast<size_t>(length));
      double score = 0;
      const int32_t count = follow(all.first(behind), std::span(path_).first(most), score);
      if (score <= best_score) continue;
      best_score = score;
      best_count = count;
      std::copy_n(path_.begin(), count, tokens.begin());
    }
    return best_count;
  }

  /// The likeliest tokens behind these places, as many as there is room for; `score`: how many of
  /// them are expected to be right.
  int32_t follow(std::span<const MatchedPlace> places, std::span<int32_t> path, double& score) {
    size_t active = places.size();
    for (size_t i = 0; i < active; ++i) active_[i] = static_cast<uint32_t>(i);
    double probability = 1;
    int32_t count = 0;
    for (const size_t room = path.size(); static_cast<size_t>(count) < room; ++count) {
      const auto token_of = [&](uint32_t place) { return places[place].token(count); };
      int32_t token = kNoToken;
      const auto [votes, of] = elect(active, token_of, token);
      if (votes == 0) break;
      probability *= static_cast<double>(votes) / static_cast<double>(of);
      if (probability < static_cast<double>(options_.min_probability)) break;
      score += probability;
      path[static_cast<size_t>(count)] = token;
      size_t kept = 0;
      for (size_t i = 0; i < active; ++i) {
        if (token_of(active_[i]) == token) active_[kept++] = active_[i];
      }
      active = kept;
    }
    return count;
  }

  /// The token that most of the active places have next, of equals the one of the longest match;
  /// how many have it, and how many have one at all.
  template <typename TokenOf>
  std::pair<int32_t, int32_t> elect(size_t active, TokenOf&& token_of, int32_t& token) {
    size_t distinct = 0;
    int32_t of = 0;
    for (size_t i = 0; i < active; ++i) {
      const int32_t next = token_of(active_[i]);
      if (next == kNoToken) continue;
      ++of;
      const auto seen = std::span(votes_).first(distinct);
      const auto found = std::ranges::find(seen, next, &std::pair<int32_t, int32_t>::first);
      if (found != seen.end()) {
        ++found->second;
      } else {
        votes_[distinct++] = {next, 1};
      }
    }
    if (distinct == 0) return {0, 0};
    const auto& best = *std::ranges::max_element(std::span(votes_).first(distinct), {},
                                                 &std::pair<int32_t, int32_t>::second);
    token = best.first;
    return {best.second, of};
  }

  const DrafterOptions options_;
  DraftTexts texts_;
  std::map<std::string, SharedAnswers> scopes_;
  uint64_t uses_ = 0;
  // The members below belong to the text that is looked at.
  std::array<MatchedPlace, 2 * kMaxPlaces> places_;
  size_t num_places_ = 0;
  std::array<uint32_t, 2 * kMaxPlaces> active_;
  std::array<std::pair<int32_t, int32_t>, 2 * kMaxPlaces> votes_;
  std::array<int32_t, TokenIndex::kMaxMatch> path_;
  ContinuationTree tree_;
};

std::unique_ptr<Drafter> make_suffix_drafter(const DrafterOptions& options) {
  return std::make_unique<SuffixDrafter>(options);
}

}  // namespace

VITRINE_REGISTER_DRAFTER("suffix", &make_suffix_drafter);

}  // namespace vitrine::speculate
