// SPDX-License-Identifier: Apache-2.0
// What n-gram and suffix drafters guess, against a plain search through the text.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "vitrine/speculate.h"

namespace vitrine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens guess(Drafter& drafter, DraftTextId text, size_t most) {
  Tokens tokens(most, -7);
  DraftProposal proposal{text, tokens, 0};
  drafter.propose({&proposal, 1});
  EXPECT_GE(proposal.count, 0);
  tokens.resize(static_cast<size_t>(proposal.count));
  return tokens;
}

DraftTextId start(Drafter& drafter, const Tokens& tokens, const std::string& scope = "",
                  int64_t prompt = 0) {
  const DraftTextId text = drafter.start({scope, prompt, 4096});
  drafter.commit(text, tokens);
  return text;
}

/// The longest earlier match of the end of a text, at least `least` tokens of it; 0: none.
size_t longest_match(const Tokens& text, size_t least) {
  size_t best = 0;
  for (size_t next = 1; next < text.size(); ++next) {
    size_t length = 0;
    while (length < next && length < 64 &&
           text[next - 1 - length] == text[text.size() - 1 - length]) {
      ++length;
    }
    best = std::max(best, length);
  }
  return best >= least ? best : 0;
}

/// Whether `drafts` follow an earlier place whose last `length` tokens are the text's; behind the
/// text's end they go on with themselves.
bool follows(const Tokens& text, const Tokens& drafts, size_t length) {
  Tokens whole = text;
  whole.insert(whole.end(), drafts.begin(), drafts.end());
  for (size_t next = length; next < text.size(); ++next) {
    const bool is_same = std::equal(text.end() - static_cast<ptrdiff_t>(length), text.end(),
                                    text.begin() + static_cast<ptrdiff_t>(next - length));
    if (is_same &&
        std::equal(drafts.begin(), drafts.end(), whole.begin() + static_cast<ptrdiff_t>(next))) {
      return true;
    }
  }
  return false;
}

TEST(Drafters, AreKnownByName) {
  EXPECT_EQ(drafter_names(), (std::vector<std::string>{"ngram", "suffix"}));
  for (const std::string& name : drafter_names()) EXPECT_EQ(make_drafter(name)->name(), name);
}

TEST(Drafters, RefuseWhatTheyCannotDo) {
  const auto refused = [](auto&& work, const char* part) {
    try {
      work();
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  };
  refused([] { make_drafter("oracle"); }, "expected one of: ngram, suffix");
  refused([] { make_drafter("ngram", {.min_match = 0}); }, "min_match");
  refused([] { make_drafter("ngram", {.min_match = 17}); }, "min_match");
  refused([] { make_drafter("suffix", {.min_probability = 1.5F}); }, "min_probability");
  refused([] { make_drafter("suffix", {.shared_tokens = -1}); }, "shared_tokens");
  refused([] { make_drafter("suffix", {.max_scopes = 0}); }, "max_scopes");
  for (const std::string& name : drafter_names()) {
    const auto drafter = make_drafter(name);
    refused([&] { drafter->start({"", 0, 0}); }, "at least 1");
    refused([&] { drafter->commit(9, Tokens{1}); }, "no text 9");
    const DraftTextId text = drafter->start({"", 0, 4});
    refused([&] { drafter->commit(text, Tokens(5, 1)); }, "outgrown");
    refused([&] { drafter->truncate(text, 1); }, "cut to 1");
    drafter->commit(text, Tokens(4, 1));
    refused([&] { drafter->truncate(text, -1); }, "cut to -1");
    drafter->release(text, true);
    refused([&] { guess(*drafter, text, 4); }, "no text");
  }
}

TEST(Ngram, CopiesWhatFollowedTheLongestMatch) {
  std::mt19937 random(3);
  const auto drafter = make_drafter("ngram");
  size_t guessed = 0;
  for (int run = 0; run < 60; ++run) {
    const int32_t alphabet = 2 + run % 12;
    Tokens tokens;
    const DraftTextId text = start(*drafter, {});
    for (int i = 0; i < 120; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(alphabet)));
      drafter->commit(text, {&tokens.back(), 1});
      const Tokens drafts = guess(*drafter, text, 5);
      const size_t length = longest_match(tokens, 2);
      ASSERT_EQ(drafts.empty(), length == 0);
      if (drafts.empty()) continue;
      ++guessed;
      EXPECT_EQ(drafts.size(), 5U);
      // Chains end somewhere, so of many places the longest may be too old: but a long one it is.
      EXPECT_TRUE(follows(tokens, drafts, std::min<size_t>(length, length >= 8 ? 8 : 2)));
      if (alphabet > 8) {
        EXPECT_TRUE(follows(tokens, drafts, length));
      }
    }
    drafter->release(text, false);
  }
  EXPECT_GT(guessed, 2000U);
}

TEST(Ngram, GoesOnWithALoop) {
  const auto drafter = make_drafter("ngram");
  const DraftTextId text = start(*drafter, {1, 2, 3, 1, 2, 3, 1});
  EXPECT_EQ(guess(*drafter, text, 7), (Tokens{2, 3, 1, 2, 3, 1, 2}));
}

TEST(Suffix, TakesTheLikeliestAsFarAsItIsLikely) {
  const auto drafter = make_drafter("suffix");
  // "7 8 9" three times: twice 1 2 3 behind it, once 4.
  const DraftTextId text =
      start(*drafter, {7, 8, 9, 1, 2, 3, 5, 7, 8, 9, 4, 6, 7, 8, 9, 1, 2, 3, 0, 7, 8, 9});
  EXPECT_EQ(guess(*drafter, text, 8), (Tokens{1, 2, 3})) << "no longer than the match";
  EXPECT_EQ(guess(*drafter, text, 2), (Tokens{1, 2}));
  EXPECT_EQ(guess(*drafter, text, 0), Tokens{});
  const auto sure = make_drafter("suffix", {.min_probability = 0.7F});
  const DraftTextId same =
      start(*sure, {7, 8, 9, 1, 2, 3, 5, 7, 8, 9, 4, 6, 7, 8, 9, 1, 2, 3, 0, 7, 8, 9});
  EXPECT_EQ(guess(*sure, same, 8), Tokens{}) << "two of three are less";
}

TEST(Suffix, LearnsFromFinishedAnswersOfItsScopeAlone) {
  const auto drafter = make_drafter("suffix");
  const Tokens prompt = {50, 51, 52, 53}, answer = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  Tokens whole = prompt;
  whole.insert(whole.end(), answer.begin(), answer.end());
  drafter->release(start(*drafter, whole, "house", 4), true);
  drafter->release(start(*drafter, {60, 61, 1, 2, 3, 4, 44, 44}, "house", 0), false);
  const Tokens begun = {90, 91, 2, 3, 4};
  EXPECT_EQ(guess(*drafter, start(*drafter, begun, "house"), 8), (Tokens{5, 6, 7}));
  EXPECT_EQ(guess(*drafter, start(*drafter, begun, "stranger"), 8), Tokens{});
  EXPECT_EQ(guess(*drafter, start(*drafter, begun), 8), Tokens{});
  EXPECT_EQ(guess(*drafter, start(*drafter, {90, 50, 51, 52}, "house"), 8), Tokens{})
      << "a prompt is nobody else's";
  // Two answers do not run into each other.
  drafter->release(start(*drafter, {20, 21, 22}, "house"), true);
  EXPECT_EQ(guess(*drafter, start(*drafter, {0, 6, 7, 8, 9}, "house"), 8), Tokens{});
}

TEST(Suffix, ForgetsTheOldestAnswersAndScopes) {
  const auto drafter = make_drafter("suffix", {.shared_tokens = 64, .max_scopes = 2});
  const auto finish = [&](int32_t first, const std::string& scope) {
    Tokens tokens;
    for (int32_t i = 0; i < 20; ++i) tokens.push_back(first + i);
    drafter->release(start(*drafter, tokens, scope), true);
  };
  const auto knows = [&](int32_t first, const std::string& scope) {
    const DraftTextId text = start(*drafter, {first, first + 1, first + 2}, scope);
    const Tokens drafts = guess(*drafter, text, 1);
    drafter->release(text, false);
    return drafts == Tokens{first + 3};
  };
  for (int32_t i = 0; i < 50; ++i) {
    finish(100 * i, "a");
    for (int32_t j = 0; j <= i; ++j) {
      EXPECT_EQ(knows(100 * j, "a"), j + 2 >= i) << i << " " << j;  // 3 x 21 tokens of 64
    }
  }
  finish(7000, "b");
  EXPECT_TRUE(knows(4900, "a"));  // used last
  finish(8000, "c");
  EXPECT_TRUE(knows(8000, "c"));
  EXPECT_TRUE(knows(4900, "a"));
  EXPECT_FALSE(knows(7000, "b"));
}

TEST(Drafters, ForkAndTruncateAsIfTheTextHadAlwaysBeenThat) {
  std::mt19937 random(5);
  for (const std::string& name : drafter_names()) {
    const auto drafter = make_drafter(name);
    for (int run = 0; run < 40; ++run) {
      Tokens tokens;
      DraftTextId text = start(*drafter, {});
      for (int change = 0; change < 30; ++change) {
        if (random() % 3 == 0) {
          tokens.resize(random() % (tokens.size() + 1));
          drafter->truncate(text, std::ssize(tokens));
        }
        if (random() % 4 == 0) {
          const DraftTextId copy = drafter->fork(text);
          drafter->commit(text, Tokens{1, 2, 3});
          drafter->release(text, false);
          text = copy;
        }
        Tokens more;
        for (size_t i = random() % 20; i > 0; --i)
          more.push_back(static_cast<int32_t>(random() % 4));
        drafter->commit(text, more);
        tokens.insert(tokens.end(), more.begin(), more.end());
        const DraftTextId anew = start(*drafter, tokens);
        EXPECT_EQ(guess(*drafter, text, 8), guess(*drafter, anew, 8)) << name;
        drafter->release(anew, false);
      }
      drafter->release(text, false);
    }
  }
}

TEST(Drafters, AnswerAllTextsOfAStep) {
  for (const std::string& name : drafter_names()) {
    const auto drafter = make_drafter(name);
    std::vector<DraftProposal> proposals;
    std::vector<Tokens> room(3, Tokens(2));
    for (int32_t i = 0; i < 3; ++i) {
      const int32_t base = 10 * i;
      const DraftTextId text =
          start(*drafter, {base, base + 1, base + 2, base + 3, base, base + 1});
      proposals.push_back({text, room[static_cast<size_t>(i)], 0});
    }
    drafter->propose(proposals);
    for (int32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(proposals[static_cast<size_t>(i)].count, 2);
      EXPECT_EQ(room[static_cast<size_t>(i)], (Tokens{10 * i + 2, 10 * i + 3})) << name;
    }
  }
}

}  // namespace
}  // namespace vitrine
