// SPDX-License-Identifier: Apache-2.0
// Texts that heads follow: whatever happened to one before, what is guessed behind it is what is
// guessed behind the same text that was shown at once, to the bit of each logit.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <thread>

#include "draft_heads/head_kind.h"
#include "tests/draft_heads/head_folders.h"

namespace vitrine::testing {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kMostTokens = 900;
constexpr size_t kMostGuesses = 6;

struct Guesses {
  Tokens tokens;
  std::vector<std::vector<float>> logits;
  bool operator==(const Guesses&) const = default;
};

class HeadTexts : public ::testing::TestWithParam<const char*> {
 protected:
  static HeadFolders& folders() {
    static HeadFolders all;
    return all;
  }
  void SetUp() override {
    drafter_ = make();
    width_ = std::ssize(drafter_->feature_layers()) * kHidden;
    features_ = random_floats(static_cast<size_t>(kMostTokens * width_), 11);
    const std::vector<float> numbers = random_floats(kMostTokens, 12, 20.0F);
    for (const float number : numbers) {
      text_.push_back(static_cast<int32_t>(std::abs(number)) % static_cast<int32_t>(kVocabulary));
    }
  }
  static std::unique_ptr<draft_heads::HeadDrafter> make() {
    return draft_heads::make_heads(GetParam(), folders().heads(GetParam()), folders().target(), {});
  }

  /// Another text's token, and its features, at each position.
  Tokens tokens(size_t first, size_t end, int32_t shift = 0) const {
    Tokens some(text_.begin() + static_cast<ptrdiff_t>(first),
                text_.begin() + static_cast<ptrdiff_t>(end));
    for (int32_t& token : some) token = (token + shift) % static_cast<int32_t>(kVocabulary);
    return some;
  }
  std::span<const float> rows(int64_t first, int64_t count) const {
    return std::span(features_).subspan(static_cast<size_t>(first * width_),
                                        static_cast<size_t>(count * width_));
  }
  void show(Drafter& drafter, DraftTextId id, int64_t first, int64_t end, int64_t chunk) const {
    for (int64_t row = first; row < end; row += chunk) {
      drafter.observe(id, row, rows(row, std::min(chunk, end - row)));
    }
  }
  /// A text of so many tokens and the features of all but the last, whose prompt has `prompt`.
  DraftTextId start(Drafter& drafter, size_t length, int64_t chunk = kMostTokens,
                    int64_t prompt = 0) const {
    const DraftTextId id = drafter.start({"", prompt, kMostTokens});
    drafter.commit(id, tokens(0, length));
    show(drafter, id, 0, static_cast<int64_t>(length) - 1, chunk);
    return id;
  }

  static std::vector<Guesses> guess(draft_heads::HeadDrafter& drafter,
                                    const std::vector<DraftTextId>& texts,
                                    size_t most = kMostGuesses) {
    std::vector<Guesses> all(texts.size());
    std::vector<DraftProposal> proposals;
    for (size_t i = 0; i < texts.size(); ++i) {
      all[i].tokens.assign(most, -7);
      proposals.push_back({texts[i], all[i].tokens, -7});
    }
    drafter.on_logits = [&](DraftTextId text, int32_t number, std::span<const float> logits) {
      const auto found = std::ranges::find(texts, text) - texts.begin();
      Guesses& own = all[static_cast<size_t>(found)];
      EXPECT_EQ(static_cast<size_t>(number), own.logits.size());
      own.logits.emplace_back(logits.begin(), logits.end());
    };
    drafter.propose(proposals);
    drafter.on_logits = nullptr;
    for (size_t i = 0; i < texts.size(); ++i) {
      all[i].tokens.resize(static_cast<size_t>(proposals[i].count));
    }
    return all;
  }
  Guesses guess(DraftTextId text) { return guess(*drafter_, {text}).front(); }
  /// What stands behind so many tokens, by a drafter that saw nothing else.
  Guesses expected(size_t length, size_t most = kMostGuesses) const {
    const auto fresh = make();
    return guess(*fresh, {start(*fresh, length)}, most).front();
  }
  size_t guesses_of_kind() const { return std::string(GetParam()) == "medusa" ? 3 : kMostGuesses; }

  std::unique_ptr<draft_heads::HeadDrafter> drafter_;
  int64_t width_ = 0;
  std::vector<float> features_;
  Tokens text_;
};

/// Runs pieces last to first, every other one on another thread.
class ReversedThreads final : public core::PieceThreads {
 public:
  void run(core::PieceWork& work, int64_t pieces) override {
    ++runs;
    std::thread other([&] {
      for (int64_t piece = pieces - 1; piece >= 0; piece -= 2) work.run_piece(piece);
    });
    for (int64_t piece = pieces - 2; piece >= 0; piece -= 2) work.run_piece(piece);
    other.join();
  }
  int threads() const override { return 2; }

  int64_t runs = 0;
};

TEST_P(HeadTexts, GuessTheSameOnLentThreads) {
  ReversedThreads threads;
  drafter_->lend(&threads);
  std::vector<DraftTextId> texts;
  std::vector<Guesses> alone;
  for (const size_t length : {2, 3, 64, 66, 300, 700, 5, 9, 33, 41, 130, 260, 17, 77, 78, 81}) {
    texts.push_back(start(*drafter_, length, 50));
    alone.push_back(expected(length));
  }
  EXPECT_EQ(guess(*drafter_, texts), alone);
  const int64_t runs = threads.runs;
  EXPECT_GT(runs, 0);
  drafter_->lend(nullptr);
  EXPECT_EQ(guess(*drafter_, texts), alone);
  EXPECT_EQ(threads.runs, runs);
}

TEST_P(HeadTexts, SayWhatTheyHold) {
  const bool has_keys = std::string(GetParam()) != "medusa";
  const DraftMemory before = drafter_->memory();
  EXPECT_GT(before.weight_bytes, static_cast<uint64_t>(3 * kHidden * kHidden) * sizeof(float));
  EXPECT_EQ(before.kv_bytes, 0U);
  EXPECT_EQ(before.index_bytes, 0U);
  const DraftTextId text = start(*drafter_, 9);
  const DraftMemory one = drafter_->memory();
  // Two layers' keys and values of 12 numbers a position.
  const uint64_t keys = uint64_t{kMostTokens} * 2 * 2 * 12 * sizeof(float);
  EXPECT_EQ(one.weight_bytes, before.weight_bytes);
  EXPECT_GE(one.kv_bytes, has_keys ? keys : 0);
  EXPECT_LE(one.kv_bytes, has_keys ? 2 * keys : 0);
  EXPECT_GE(one.index_bytes, kMostTokens * sizeof(int32_t));
  EXPECT_EQ(drafter_->text_kv_bytes(kMostTokens), one.kv_bytes);
  if (has_keys) {
    DraftText more{.max_tokens = kMostTokens, .kv_bytes = 2 * one.kv_bytes - 1};
    const Error error = error_of([&] { drafter_->start(more); });
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_TRUE(is_one_line_with(
        error, {std::to_string(one.kv_bytes), "'draft_kv_bytes'", std::to_string(more.kv_bytes)}))
        << error.what();
    ++more.kv_bytes;
    drafter_->release(drafter_->start(more), false);
  }
  const DraftTextId other = drafter_->fork(text);
  EXPECT_EQ(drafter_->memory().kv_bytes, 2 * one.kv_bytes);
  EXPECT_EQ(drafter_->memory().index_bytes, 2 * one.index_bytes);
  drafter_->release(text, true);
  drafter_->release(other, false);
  EXPECT_EQ(drafter_->memory().kv_bytes, 0U);
}

TEST_P(HeadTexts, GuessTheSameHoweverFeaturesAreShown) {
  for (const size_t length : {2, 3, 64, 66, 300, 700}) {
    const Guesses whole = expected(length);
    EXPECT_EQ(whole.tokens.size(), guesses_of_kind());
    EXPECT_EQ(whole.logits.size(), whole.tokens.size());
    for (const int64_t chunk : {1, 7, 256}) {
      EXPECT_EQ(guess(start(*drafter_, length, chunk)), whole) << length << " by " << chunk;
    }
  }
}

TEST_P(HeadTexts, GuessTheSameTogether) {
  std::vector<DraftTextId> texts;
  std::vector<Guesses> alone;
  for (size_t length = 2; length < 72; length += 2) {
    texts.push_back(start(*drafter_, length));
    alone.push_back(expected(length));
  }
  EXPECT_EQ(guess(*drafter_, texts), alone);
}

TEST_P(HeadTexts, GuessAgainWhereATextDidNotGoOn) {
  const DraftTextId id = start(*drafter_, 40);
  EXPECT_EQ(guess(id), expected(40));
  EXPECT_EQ(guess(id), expected(40));
}

TEST_P(HeadTexts, GoOnBehindWhatWasGuessedWrongOrRight) {
  const DraftTextId id = start(*drafter_, 20, 4, 20);
  for (size_t length = 20; length < 90;) {
    EXPECT_EQ(guess(id), expected(length)) << length;
    const size_t accepted = length % 5;
    drafter_->told(id, kMostGuesses, static_cast<int32_t>(accepted));
    const auto end = length + accepted + 1;
    // Tokens first, or features first.
    if (length % 2 == 0) drafter_->commit(id, tokens(length, end));
    show(*drafter_, id, static_cast<int64_t>(length) - 1, static_cast<int64_t>(end) - 1, 100);
    if (length % 2 == 1) drafter_->commit(id, tokens(length, end));
    length = end;
  }
}

TEST_P(HeadTexts, BeginTheAnswerAnew) {
  // The drafter is asked, or not, before the answer is longer than what is kept of features.
  for (const bool is_asked : {false, true}) {
    const DraftTextId id = start(*drafter_, 30, 100, 30);
    if (is_asked) guess(id);
    drafter_->commit(id, tokens(30, 800, 1));
    drafter_->observe(id, 29, rows(29, 1));
    show(*drafter_, id, 30, 799, 64);
    if (is_asked) guess(id);
    drafter_->truncate(id, 30);
    drafter_->commit(id, tokens(30, 31));  // what follows the prompt's last position
    EXPECT_EQ(guess(id), expected(31));
    drafter_->commit(id, tokens(31, 33));
    show(*drafter_, id, 29, 32, 2);  // the first of these rows is known already
    EXPECT_EQ(guess(id), expected(33));
  }
}

TEST_P(HeadTexts, GoOnWhereFeaturesAreLost) {
  const DraftTextId id = start(*drafter_, 600, 100, 30);
  EXPECT_FALSE(guess(id).tokens.empty());
  drafter_->truncate(id, 100);
  EXPECT_TRUE(guess(id).tokens.empty());  // of position 98 nothing is known any more
  drafter_->commit(id, tokens(100, 102));
  show(*drafter_, id, 99, 101, 5);
  EXPECT_EQ(guess(id), expected(102));
  drafter_->truncate(id, 60);
  drafter_->commit(id, tokens(60, 64));
  show(*drafter_, id, 61, 63, 5);  // 59 and 60 are not shown again: it begins behind them
  EXPECT_EQ(guess(id).tokens.size(), guesses_of_kind());
  drafter_->truncate(id, 0);
  drafter_->commit(id, tokens(0, 50));
  show(*drafter_, id, 0, 49, 5);
  EXPECT_EQ(guess(id), expected(50));
}

TEST_P(HeadTexts, BeginBehindAPrefixWithoutFeatures) {
  const DraftTextId id = drafter_->start({"", 60, kMostTokens});
  drafter_->commit(id, tokens(0, 60));
  EXPECT_TRUE(guess(id).tokens.empty());
  show(*drafter_, id, 40, 59, 5);
  const Guesses found = guess(id);
  // A text that is no more than what was shown, but for where it is rotated.
  const DraftTextId rest = drafter_->start({"", 0, 100});
  drafter_->commit(rest, tokens(40, 60));
  drafter_->observe(rest, 0, rows(40, 19));
  const Guesses alike = guess(rest);
  ASSERT_EQ(found.tokens, alike.tokens);
  for (size_t i = 0; i < found.logits.size(); ++i) {
    for (size_t j = 0; j < found.logits[i].size(); ++j) {
      EXPECT_NEAR(found.logits[i][j], alike.logits[i][j], 1e-4);
    }
  }
}

TEST_P(HeadTexts, Fork) {
  const DraftTextId first = start(*drafter_, 50);
  guess(first);
  const DraftTextId second = drafter_->fork(first);
  drafter_->commit(second, tokens(50, 70, 3));
  show(*drafter_, second, 49, 69, 9);
  guess(second);
  drafter_->commit(first, tokens(50, 80));
  show(*drafter_, first, 49, 79, 9);
  EXPECT_EQ(guess(first), expected(80));
  drafter_->release(first, true);
  drafter_->truncate(second, 50);
  drafter_->commit(second, tokens(50, 60));
  show(*drafter_, second, 50, 59, 9);
  EXPECT_FALSE(drafter_->name().empty());
}

TEST_P(HeadTexts, GuessNothingWithoutRoomOrFeatures) {
  const DraftTextId empty = drafter_->start({"", 0, 4});
  const DraftTextId one = drafter_->start({"", 0, 4});
  drafter_->commit(one, tokens(0, 1));
  const DraftTextId whole = start(*drafter_, 20);
  const DraftTextId late = start(*drafter_, 20);
  drafter_->commit(late, tokens(20, 22));  // the features of 19 and 20 are to come
  const std::vector<Guesses> found = guess(*drafter_, {empty, one, whole, late});
  EXPECT_TRUE(found[0].tokens.empty());
  EXPECT_TRUE(found[1].tokens.empty());
  EXPECT_EQ(found[2], expected(20));
  EXPECT_TRUE(found[3].tokens.empty());
  DraftProposal none{whole, {}, -1};
  drafter_->propose({&none, 1});
  EXPECT_EQ(none.count, 0);
  for (const size_t most : {1, 2, 80}) {
    EXPECT_EQ(guess(*drafter_, {whole}, most).front(), expected(20, most));
  }
}

TEST_P(HeadTexts, GuessAtTheEndOfTheirRoom) {
  const DraftTextId id = drafter_->start({"", 0, 64});
  drafter_->commit(id, tokens(0, 64));
  show(*drafter_, id, 0, 63, 10);
  EXPECT_EQ(guess(*drafter_, {id}, 64).front(), expected(64, 64));
}

TEST_P(HeadTexts, RefuseWhatTheyCannotFollow) {
  const auto refused = [](auto&& work, std::string_view part) {
    const Error error = error_of(work);
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {part, "expected"})) << error.what();
  };
  refused([&] { drafter_->start({"", 0, 0}); }, "at most 0 tokens");
  refused([&] { drafter_->start({"", -1, 5}); }, "at most 5 tokens");
  refused([&] { drafter_->commit(99, tokens(0, 2)); }, "no text 99");
  refused([&] { drafter_->fork(99); }, "no text 99");
  const DraftTextId id = drafter_->start({"", 0, 3});
  refused([&] { drafter_->commit(id, tokens(0, 4)); }, "outgrown the 3 tokens");
  refused([&] { drafter_->truncate(id, 1); }, "cut to 1 tokens");
  refused([&] { drafter_->observe(id, 0, rows(0, 1).first(5)); }, "5 features");
  drafter_->release(id, false);
  refused([&] { drafter_->commit(id, tokens(0, 1)); }, "no text");
  if (std::string(GetParam()) == "medusa") return;
  const DraftTextId ahead = drafter_->start({"", 0, kMostTokens});
  const int32_t strange[] = {static_cast<int32_t>(kVocabulary)};
  refused([&] { drafter_->commit(ahead, strange); }, "token 67");
  refused([&] { drafter_->observe(ahead, 0, rows(0, 400)); }, "0 tokens and features");
}

INSTANTIATE_TEST_SUITE_P(Kinds, HeadTexts, ::testing::Values("eagle3", "peagle", "medusa"),
                         [](const auto& about) { return std::string(about.param); });

}  // namespace
}  // namespace vitrine::testing
