// SPDX-License-Identifier: Apache-2.0
// What a drafter is told of a conversation whose text it keeps: only what is new.
#include <gtest/gtest.h>

#include <atomic>

#include "vitrine/speculate.h"

namespace vitrine {
namespace {

using Tokens = std::vector<int32_t>;

/// Follows texts, and writes down what it is told.
class Listener final : public Drafter {
 public:
  explicit Listener(std::string& told) : told_(told) {}
  std::string_view name() const override { return "listener"; }
  DraftTextId start(const DraftText& about) override {
    told_ += "start" + std::to_string(about.max_tokens) + " ";
    return ++last_;
  }
  DraftTextId fork(DraftTextId) override { return ++last_; }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    say(text, "+");
    for (const int32_t token : tokens) told_ += std::to_string(token) + ",";
    told_ += " ";
    if (fails) throw std::runtime_error("no");
  }
  void truncate(DraftTextId text, int64_t length) override {
    say(text, "cut" + std::to_string(length) + " ");
  }
  void propose(std::span<DraftProposal> proposals) override {
    for (const DraftProposal& proposal : proposals) say(proposal.text, "? ");
  }
  void observe(DraftTextId text, int64_t first, std::span<const float>) override {
    say(text, "see" + std::to_string(first) + " ");
  }
  void release(DraftTextId text, bool) override { say(text, "end "); }
  bool fails = false;

 private:
  void say(DraftTextId text, const std::string& what) {
    told_ += (text == 1 ? "" : std::to_string(text) + ":") + what;
  }
  std::string& told_;
  DraftTextId last_ = 0;
};

class KeptText : public ::testing::Test {
 protected:
  std::string take() { return std::exchange(told_, {}); }
  DraftTextId begin(const Tokens& past, const Tokens& prompt, int64_t most = 50) {
    const DraftTextId text = drafter_->start({"here", std::ssize(past) + std::ssize(prompt), most});
    if (!past.empty()) drafter_->commit(text, past);
    drafter_->commit(text, prompt);
    return text;
  }
  void ask(DraftTextId text) {
    DraftProposal proposal{text};
    drafter_->propose({&proposal, 1});
  }

  std::string told_;
  Listener* listener_ = new Listener(told_);
  std::unique_ptr<Drafter> drafter_ = keep_text(std::unique_ptr<Drafter>(listener_), 100);
};

TEST_F(KeptText, IsToldOnlyWhatIsNew) {
  DraftTextId text = begin({}, {1, 2, 3});
  ask(text);
  drafter_->commit(text, Tokens{4});
  drafter_->release(text, true);
  EXPECT_EQ(take(), "start100 +1,2,3, ? +4, ");
  // The next turn goes on behind all of it.
  text = begin({1, 2, 3, 4}, {5, 6});
  ask(text);
  EXPECT_EQ(take(), "+5,6, ? ");
  drafter_->commit(text, Tokens{7});
  drafter_->release(text, false);
  take();
  // Another course from the fourth token on.
  text = begin({1, 2, 3}, {9, 6});
  EXPECT_EQ(take(), "cut3 +9,6, ");
  drafter_->release(text, true);
  // The same prompt again, whose answer goes.
  text = begin({1, 2}, {3, 9});
  drafter_->observe(text, 2, {});
  EXPECT_EQ(take(), "cut4 see2 ");
  drafter_->truncate(text, 3);
  drafter_->commit(text, Tokens{8});
  drafter_->release(text, true);
  EXPECT_EQ(take(), "cut3 +8, ");
  text = begin({}, {1, 2, 3, 8});
  ask(text);
  EXPECT_EQ(take(), "? ");
  // An answer that never asked leaves what it showed.
  drafter_->release(text, true);
  text = begin({}, {1, 2});
  drafter_->release(text, true);
  EXPECT_EQ(take(), "cut2 ");
  drafter_.reset();
  EXPECT_EQ(take(), "end ");
}

TEST_F(KeptText, HasOthersBesideIt) {
  const DraftTextId kept = begin({}, {1});
  const DraftTextId other = begin({}, {2});
  EXPECT_EQ(take(), "start100 +1, start50 2:+2, ");
  drafter_->release(other, true);
  EXPECT_EQ(take(), "2:end ");
  drafter_->release(kept, true);
  EXPECT_EQ(take(), "");
  // These texts are of another scope, or too long for what is there.
  const DraftTextId text = drafter_->start({"there", 1, 50});
  EXPECT_EQ(take(), "end start100 ");
  drafter_->release(text, true);
  begin({}, {1}, 200);
  EXPECT_EQ(take(), "3:end start200 4:+1, ");
}

TEST_F(KeptText, IsOfAnswersThatAreCancelledAlike) {
  const std::atomic<bool> first = false, second = false;
  for (const std::atomic<bool>* cancelled : {&first, &first, &second}) {
    const DraftTextId text = drafter_->start({"here", 1, 50, 0, cancelled});
    drafter_->commit(text, Tokens{1});
    drafter_->release(text, true);
  }
  EXPECT_EQ(take(), "start100 +1, end start100 2:+1, ");
}

TEST_F(KeptText, GoesWhereADrafterFailed) {
  DraftTextId text = begin({}, {1});
  listener_->fails = true;
  EXPECT_THROW(drafter_->commit(text, Tokens{2}), std::runtime_error);
  drafter_->release(text, false);
  listener_->fails = false;
  take();
  text = begin({1, 2}, {3});
  EXPECT_EQ(take(), "end start100 2:+1,2, 2:+3, ");
}

}  // namespace
}  // namespace vitrine
