// SPDX-License-Identifier: Apache-2.0
// The trees that n-gram and suffix drafters guess, against a plain count of what stands in the
// text.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "vitrine/speculate.h"

namespace vitrine {
namespace {

using Tokens = std::vector<int32_t>;

struct Tree {
  Tokens tokens, parents;
  /// The tokens that lead to a node, it included.
  Tokens path(size_t node) const {
    Tokens path;
    for (auto at = static_cast<int32_t>(node); at >= 0; at = parents[static_cast<size_t>(at)]) {
      path.insert(path.begin(), tokens[static_cast<size_t>(at)]);
    }
    return path;
  }
  std::set<Tokens> paths() const {
    std::set<Tokens> all;
    for (size_t node = 0; node < tokens.size(); ++node) all.insert(path(node));
    return all;
  }
  /// How many of `truth` stand in it one behind another.
  size_t right(const Tokens& truth) const {
    const std::set<Tokens> all = paths();
    size_t count = 0;
    while (count < truth.size() &&
           all.contains(Tokens(truth.begin(), truth.begin() + static_cast<ptrdiff_t>(count) + 1))) {
      ++count;
    }
    return count;
  }
};

/// What it guesses behind a text; a tree where `depth` is above 0.
Tree guess(Drafter& drafter, DraftTextId text, size_t most, int32_t depth) {
  Tree tree{Tokens(most, -7), Tokens(depth > 0 ? most : 0, -1)};
  DraftProposal proposal{text, tree.tokens, 0, tree.parents, depth};
  drafter.propose({&proposal, 1});
  EXPECT_GE(proposal.count, 0);
  EXPECT_LE(static_cast<size_t>(proposal.count), most);
  tree.tokens.resize(static_cast<size_t>(proposal.count));
  tree.parents.resize(tree.tokens.size());
  if (depth == 0) {
    for (size_t i = 0; i < tree.parents.size(); ++i) tree.parents[i] = static_cast<int32_t>(i) - 1;
  }
  for (size_t i = 0; i < tree.parents.size(); ++i) {
    EXPECT_LT(tree.parents[i], static_cast<int32_t>(i));
    EXPECT_GE(tree.parents[i], -1);
    if (depth > 0) {
      EXPECT_LE(std::ssize(tree.path(i)), depth);
    }
  }
  EXPECT_EQ(tree.paths().size(), tree.tokens.size()) << "no path twice";
  return tree;
}

Tree guess_behind(const std::string& name, const Tokens& text, size_t most, int32_t depth) {
  const auto drafter = make_drafter(name);
  const DraftTextId id = drafter->start({"", 0, 4096});
  drafter->commit(id, text);
  return guess(*drafter, id, most, depth);
}

/// Earlier places that the end of a text matches by two tokens or more: what follows, by length.
std::multimap<size_t, size_t, std::greater<>> matches(const Tokens& text) {
  std::multimap<size_t, size_t, std::greater<>> all;
  for (size_t next = 1; next < text.size(); ++next) {
    size_t length = 0;
    while (length < next && text[next - 1 - length] == text[text.size() - 1 - length]) ++length;
    if (length >= 2) all.emplace(length, next);
  }
  return all;
}

/// Whether `path` stands at a place of the text.
bool stands_at(const Tokens& text, size_t place, const Tokens& path) {
  return place + path.size() <= text.size() &&
         std::equal(path.begin(), path.end(), text.begin() + static_cast<ptrdiff_t>(place));
}

/// How likely a path is, by the places of one length and above.
double probability(const Tokens& text, const std::vector<size_t>& places, const Tokens& path) {
  double product = 1;
  for (size_t count = 1; count <= path.size(); ++count) {
    const Tokens own(path.begin(), path.begin() + static_cast<ptrdiff_t>(count));
    const Tokens before(own.begin(), own.end() - 1);
    double with = 0, all = 0;
    for (const size_t place : places) {
      with += stands_at(text, place, own) ? 1 : 0;
      all += stands_at(text, place, before) && place + count <= text.size() ? 1 : 0;
    }
    if (with == 0) return 0;
    product *= with / all;
  }
  return product;
}

/// How likely it is by the length of match that makes it likeliest.
double likelihood(const Tokens& text, const Tokens& path) {
  const auto all = matches(text);
  double best = 0;
  std::vector<size_t> places;
  size_t lengths = 0;
  for (auto at = all.begin(); at != all.end() && lengths < 6; ++lengths) {
    const size_t length = at->first;
    for (; at != all.end() && at->first == length; ++at) places.push_back(at->second);
    if (path.size() <= length) best = std::max(best, probability(text, places, path));
  }
  return best;
}

TEST(SuffixTree, HasTheLikeliestPathsThereAre) {
  std::mt19937 random(9);
  size_t full = 0, sparse = 0;
  for (int run = 0; run < 120; ++run) {
    const auto alphabet = static_cast<uint32_t>(2 + run % 4);
    Tokens text;
    for (int i = 0; i < 48; ++i) text.push_back(static_cast<int32_t>(random() % alphabet));
    const size_t most = 1 + random() % 14;
    const auto depth = static_cast<int32_t>(1 + random() % 6);
    const Tree tree = guess_behind("suffix", text, most, depth);
    const std::set<Tokens> paths = tree.paths();
    double least = 1;
    for (const Tokens& path : paths) least = std::min(least, likelihood(text, path));
    if (!paths.empty()) {
      EXPECT_GE(least, 0.0999);
    }
    // No path that is not there is likelier, behind one that is.
    double missed = 0;
    std::set<Tokens> ends = paths;
    ends.insert(Tokens());
    for (const Tokens& before : ends) {
      if (std::ssize(before) == depth) continue;
      for (uint32_t token = 0; token < alphabet; ++token) {
        Tokens path = before;
        path.push_back(static_cast<int32_t>(token));
        if (!paths.contains(path)) missed = std::max(missed, likelihood(text, path));
      }
    }
    if (paths.size() == most) {
      EXPECT_LE(missed, least + 1e-6);
      ++full;
    } else {
      EXPECT_LT(missed, 0.1001);
      ++sparse;
    }
  }
  EXPECT_GT(full, 30U);
  EXPECT_GT(sparse, 5U);
}

TEST(NgramTree, HasWhatFollowedTheNewestOfTheLongestMatches) {
  // "7 8" at three places: the newest goes on with 5, then 3, then 1.
  const Tokens text = {7, 8, 1, 2, 9, 7, 8, 3, 4, 9, 7, 8, 5, 6, 0, 7, 8};
  const Tree tree = guess_behind("ngram", text, 6, 2);
  EXPECT_EQ(tree.tokens, (Tokens{5, 6, 3, 4, 1, 2}));
  EXPECT_EQ(tree.parents, (Tokens{-1, 0, -1, 2, -1, 4}));
  EXPECT_EQ(guess_behind("ngram", text, 3, 2).tokens, (Tokens{5, 6, 3}));
  EXPECT_EQ(guess_behind("ngram", text, 3, 3).tokens, (Tokens{5, 6, 0}));
  // What begins alike is there once, and the longer match comes first.
  const Tokens alike = {0, 7, 8, 1, 2, 9, 7, 8, 1, 3, 0, 7, 8};
  const Tree shared = guess_behind("ngram", alike, 6, 2);
  EXPECT_EQ(shared.tokens, (Tokens{1, 2, 3}));
  EXPECT_EQ(shared.parents, (Tokens{-1, 0, 0}));
  EXPECT_TRUE(guess_behind("ngram", {1, 2, 3}, 6, 2).tokens.empty());
}

TEST(NgramTree, GoesOnWithALoopOnEachPath) {
  const Tree tree = guess_behind("ngram", {4, 1, 2, 1, 2}, 8, 5);
  EXPECT_TRUE(tree.paths().contains({1, 2, 1, 2, 1}));
}

// A text in which the likeliest continuation is wrong each time, and the second one right.
TEST(DraftTrees, HaveTheSecondChoiceWhereAChainHasTheFirst) {
  // "7 8" goes on with "1 2 3" three times and with "4 5 6" twice; n-grams see the newest first.
  Tokens text;
  int32_t separator = 20;
  for (const int32_t next : {1, 4, 1, 4, 1}) {
    text.insert(text.end(), {7, 8, next, next + 1, next + 2, separator++});
  }
  text.insert(text.end(), {9, 7, 8});
  const Tokens truth = {4, 5, 6};
  for (const std::string& name : drafter_names()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(guess_behind(name, text, 8, 0).right(truth), 0U);
    // The suffix tree's match has two tokens, and no path is longer.
    EXPECT_EQ(guess_behind(name, text, 8, 3).right(truth), name == "suffix" ? 2U : 3U);
  }
}

TEST(DraftTrees, OfTextsThatRepeatHaveNoLessThanChains) {
  std::mt19937 random(4);
  for (const std::string& name : drafter_names()) {
    SCOPED_TRACE(name);
    // Phrases that go on in one of two ways.
    const auto drafter = make_drafter(name);
    const DraftTextId text = drafter->start({"", 0, 4096});
    Tokens all;
    for (int i = 0; i < 200; ++i) {
      const auto phrase = static_cast<int32_t>(random() % 5),
                 way = static_cast<int32_t>(random() % 3 == 0);
      const int32_t first = 10 * phrase, second = first + 3 + 3 * way;
      all.insert(all.end(), {first, first + 1, first + 2, second, second + 1, second + 2});
    }
    size_t of_chains = 0, of_trees = 0;
    for (size_t next = 0; next < all.size(); ++next) {
      const Tokens truth(all.begin() + static_cast<ptrdiff_t>(next),
                         all.begin() + static_cast<ptrdiff_t>(std::min(next + 4, all.size())));
      of_chains += guess(*drafter, text, 4, 0).right(truth);
      of_trees += guess(*drafter, text, 8, 4).right(truth);
      drafter->commit(text, {&all[next], 1});
    }
    EXPECT_GT(of_chains, 500U);
    EXPECT_GT(of_trees, of_chains + of_chains / 10);
    drafter->release(text, false);
  }
}

TEST(DraftTrees, AreEmptyWhereThereIsNoRoom) {
  const Tokens text = {1, 2, 3, 1, 2, 3, 1, 2};
  for (const std::string& name : drafter_names()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(guess_behind(name, text, 1, 4).tokens, (Tokens{3}));
    EXPECT_EQ(guess_behind(name, text, 5, 1).tokens, (Tokens{3}));
    EXPECT_EQ(guess_behind(name, text, 255, 200).right({3, 1, 2}), 3U);
  }
}

}  // namespace
}  // namespace vitrine
