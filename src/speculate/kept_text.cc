// SPDX-License-Identifier: Apache-2.0
// A conversation's text stays with its drafter from answer to answer.
#include <algorithm>
#include <atomic>
#include <utility>

#include "core/piece_work.h"
#include "vitrine/speculate.h"

namespace vitrine {

namespace {

class TextKeeper : public Drafter {
 public:
  TextKeeper(std::unique_ptr<Drafter> drafter, int64_t max_tokens)
      : drafter_(std::move(drafter)), max_tokens_(max_tokens) {}
  TextKeeper(const TextKeeper&) = delete;
  TextKeeper& operator=(const TextKeeper&) = delete;
  ~TextKeeper() override {
    try {
      drop();
    } catch (...) {  // it goes all the same
    }
  }

  std::string_view name() const override { return drafter_->name(); }
  std::span<const int> feature_layers() const override { return drafter_->feature_layers(); }
  DraftMemory memory() const override { return drafter_->memory(); }
  uint64_t text_kv_bytes(int64_t max_tokens) const override {
    return drafter_->text_kv_bytes(max_tokens);
  }

  DraftTextId start(const DraftText& about) override {
    if (is_followed_) return drafter_->start(about);  // beside the one that is kept
    const bool is_other = about.scope != scope_ || about.cancelled != cancelled_;
    if (is_broken_ || is_other || about.max_tokens > max_tokens_) drop();
    if (text_ == 0) {
      max_tokens_ = std::max(max_tokens_, about.max_tokens);
      DraftText whole = about;
      whole.max_tokens = max_tokens_;
      text_ = drafter_->start(whole);
      scope_ = about.scope;
      cancelled_ = about.cancelled;
    }
    is_followed_ = true;
    num_matched_ = 0;
    is_matching_ = true;
    return text_;
  }

  DraftTextId fork(DraftTextId text) override {
    DraftTextId copy = 0;
    call(text, [&] { copy = drafter_->fork(text); });
    return copy;
  }

  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    if (is_kept(text) && is_matching_) tokens = match(tokens);
    if (tokens.empty()) return;
    call(text, [&] { drafter_->commit(text, tokens); });
    if (is_kept(text)) tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  }

  void truncate(DraftTextId text, int64_t length) override {
    call(text, [&] { drafter_->truncate(text, length); });
    if (is_kept(text)) tokens_.resize(static_cast<size_t>(length));
  }

  void propose(std::span<DraftProposal> proposals) override {
    try {
      for (const DraftProposal& proposal : proposals) settle(proposal.text);
      drafter_->propose(proposals);
    } catch (...) {
      is_broken_ = true;
      throw;
    }
  }

  void observe(DraftTextId text, int64_t first, std::span<const float> rows) override {
    call(text, [&] { drafter_->observe(text, first, rows); });
  }
  void told(DraftTextId text, int32_t proposed, int32_t accepted) override {
    call(text, [&] { drafter_->told(text, proposed, accepted); });
  }

  void release(DraftTextId text, bool is_whole) override {
    if (!is_kept(text)) return drafter_->release(text, is_whole);
    if (!is_broken_) settle(text);
    is_followed_ = false;
  }

 private:
  bool is_kept(DraftTextId text) const { return is_followed_ && text == text_; }

  // What throws in the middle of something may have left it half done.
  template <typename Work>
  void call(DraftTextId text, Work&& work) {
    try {
      settle(text);
      work();
    } catch (...) {
      is_broken_ = is_broken_ || is_kept(text);
      throw;
    }
  }

  // Leaves out what the text has already.
  std::span<const int32_t> match(std::span<const int32_t> tokens) {
    const auto known = std::span(tokens_).subspan(num_matched_);
    const auto same =
        static_cast<size_t>(std::ranges::mismatch(tokens, known).in1 - tokens.begin());
    num_matched_ += same;
    return tokens.subspan(same);
  }

  // What it had beyond what it has been shown again is of another course of the conversation.
  void settle(DraftTextId text) {
    if (!is_kept(text) || !std::exchange(is_matching_, false)) return;
    if (num_matched_ == tokens_.size()) return;
    tokens_.resize(num_matched_);
    drafter_->truncate(text_, static_cast<int64_t>(num_matched_));
  }

  void drop() {
    tokens_.clear();
    is_broken_ = false;
    if (text_ != 0) drafter_->release(std::exchange(text_, 0), false);
  }

  std::unique_ptr<Drafter> drafter_;
  int64_t max_tokens_;
  std::string scope_;
  const std::atomic<bool>* cancelled_ = nullptr;  // that the drafter looks at while it computes
  DraftTextId text_ = 0;                          // that is kept; 0: there is none yet
  std::vector<int32_t> tokens_;                   // that the drafter has of it
  bool is_followed_ = false;                      // an answer goes on with it
  bool is_matching_ = false;  // and has been shown nothing else than stood there
  size_t num_matched_ = 0;
  bool is_broken_ = false;
};

// Keeps the text of a drafter that borrows threads. Others are asked without: they may have engines
// that share those threads, and use them while nobody else is inside.
class LendingKeeper final : public TextKeeper, public core::ThreadBorrower {
 public:
  LendingKeeper(std::unique_ptr<Drafter> drafter, core::ThreadBorrower& borrower,
                int64_t max_tokens)
      : TextKeeper(std::move(drafter), max_tokens), borrower_(borrower) {}
  void lend(core::PieceThreads* threads) override { borrower_.lend(threads); }

 private:
  core::ThreadBorrower& borrower_;
};

}  // namespace

std::unique_ptr<Drafter> keep_text(std::unique_ptr<Drafter> drafter, int64_t max_tokens) {
  if (auto* const borrower = dynamic_cast<core::ThreadBorrower*>(drafter.get())) {
    return std::make_unique<LendingKeeper>(std::move(drafter), *borrower, max_tokens);
  }
  return std::make_unique<TextKeeper>(std::move(drafter), max_tokens);
}

}  // namespace vitrine
