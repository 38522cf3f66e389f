// SPDX-License-Identifier: Apache-2.0
#include "engine/generate/speculation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

namespace vitrine::engine {

namespace {

constexpr int32_t kGone = -2;  // in moved_

constexpr const char* kUnknownProblem = "it threw what is no std::exception";

using SpeculationClock = std::chrono::steady_clock;

void check_speculation(const SpeculationOptions& options) {
  if (options.max_drafts < 1 || options.max_drafts > kMaxDrafts) {
    throw Error(ErrorKind::kInvalidArgument, "max_drafts is " + std::to_string(options.max_drafts) +
                                                 "; expected 1 to " + std::to_string(kMaxDrafts) +
                                                 " guesses a pass");
  }
  if (options.max_depth < 0 || options.max_depth > options.max_drafts) {
    throw Error(ErrorKind::kInvalidArgument,
                "max_depth of drafts is " + std::to_string(options.max_depth) +
                    "; expected 0 for a chain, or 1 to max_drafts, " +
                    std::to_string(options.max_drafts) + ", for a tree");
  }
  if (options.acceptance == DraftAcceptance::kRejection && options.max_depth > 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "max_depth of drafts is " + std::to_string(options.max_depth) +
                    " with rejection sampling, which checks chains; expected 0, or "
                    "DraftAcceptance::kNoise");
  }
  if (options.draft_cost && !(std::isfinite(*options.draft_cost) && *options.draft_cost >= 0)) {
    throw Error(ErrorKind::kInvalidArgument, "the cost of a drafter's call is " +
                                                 std::to_string(*options.draft_cost) +
                                                 "; expected a finite number, 0 or more");
  }
  if (!std::isfinite(options.threshold) || options.threshold < 0) {
    throw Error(ErrorKind::kInvalidArgument, "the threshold of speculation is " +
                                                 std::to_string(options.threshold) +
                                                 "; expected a finite number, 0 or more");
  }
}

// What a drafter holds comes out of the engine's budget.
void check_kv_budget(const Drafter& drafter, const DraftText& text, uint64_t kv_bytes) {
  const uint64_t held = drafter.memory().kv_bytes;
  if (held <= text.kv_bytes) return;
  throw Error(ErrorKind::kOutOfMemory,
              "it holds " + std::to_string(held) +
                  " bytes of keys and values, and of the engine's " + std::to_string(kv_bytes) +
                  " ('kv_bytes') " + std::to_string(text.kv_bytes) +
                  " are drafters' ('draft_kv_bytes'); expected engine options that leave it more, "
                  "or a drafter that was made with no more");
}

std::string one_line(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

}  // namespace

Speculation::Speculation(const SpeculationOptions& options, const SpeculatedAnswer& answer)
    : options_(options),
      takes_trees_(options.max_depth > 0 && answer.runs_trees),
      lender_(answer.lender),
      borrower_(dynamic_cast<core::ThreadBorrower*>(options.drafter)),
      cancelled_(answer.cancelled),
      ended_(answer.ended),
      gate_(options),
      gate_ahead_(options),
      end_ids_(answer.end_ids.begin(), answer.end_ids.end()),
      vocab_size_(answer.vocab_size),
      before_(std::ssize(answer.past) + std::ssize(answer.prompt)) {
  check_speculation(options);
  if (options.acceptance == DraftAcceptance::kRejection) {
    draw_ = find_drawing_stage(*answer.sampler);
    if (draw_ != nullptr) draw_->check_drafts();
  }
  const auto most = static_cast<size_t>(options.max_drafts);
  drafts_.resize(most);
  parents_.resize(most);
  moved_.resize(most);
  step_parents_.reserve(most);
  step_tokens_.reserve(most + 1);
  counts_.acceptance_histogram.resize(most + 1);
  guarded([&] {
    counts_.drafter = options_.drafter->name();
    const std::span<const int> reads = options_.drafter->feature_layers();
    if (!reads.empty() && !std::ranges::equal(reads, answer.feature_layers)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "it reads layers of the model that the engine was not loaded to show; expected "
                  "EngineOptions::feature_layers to be its own");
    }
    DraftText text{options_.scope, before_, before_ + answer.room, answer.sequence,
                   answer.cancelled != nullptr ? answer.cancelled : answer.ended};
    if (answer.draft_kv_bytes) {
      text.kv_bytes = *answer.draft_kv_bytes;
      check_kv_budget(*options_.drafter, text, answer.kv_bytes);
    }
    text_ = options_.drafter->start(text);
    if (text_ == 0) throw Error(ErrorKind::kInvalidArgument, "it named a text 0");
  });
  if (is_on() && !answer.past.empty()) show(answer.past);
  if (is_on()) show(answer.prompt);
}

class Speculation::Loan {
 public:
  explicit Loan(const Speculation& answer)
      : borrower_(answer.borrower_), lender_(borrower_ == nullptr ? nullptr : answer.lender_) {
    core::PieceThreads* const threads = lender_ == nullptr ? nullptr : lender_->borrow();
    is_lent_ = threads != nullptr;
    if (is_lent_) borrower_->lend(threads);
  }
  ~Loan() {
    if (!is_lent_) return;
    borrower_->lend(nullptr);
    lender_->give_back();
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

 private:
  core::ThreadBorrower* borrower_;
  ThreadLender* lender_;
  bool is_lent_ = false;
};

template <typename Work>
void Speculation::guarded(Work&& work) {
  const SpeculationClock::time_point start = SpeculationClock::now();
  try {
    work();
  } catch (const std::exception& error) {
    fail(error);
  } catch (...) {
    fail(kUnknownProblem);
  }
  add_time(std::chrono::duration<double>(SpeculationClock::now() - start).count());
}

// An answer that is cancelled ends, and its drafter has no problem.
void Speculation::fail(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own == nullptr || own->kind() != ErrorKind::kCancelled || !is_cancelled()) {
    return fail(std::string(error.what()));
  }
  num_drafts_ = 0;
  release(false);
}

void Speculation::fail(const std::string& problem) {
  const std::string name = counts_.drafter.empty() ? "?" : counts_.drafter;
  counts_.problem = one_line("drafter '" + name + "' is not asked any more: " + problem);
  num_drafts_ = 0;
  release(false);
}

void Speculation::release(bool is_whole) {
  const DraftTextId text = std::exchange(text_, 0);
  if (text == 0) return;
  try {
    counts_.memory = options_.drafter->memory();
  } catch (...) {  // it stays untold
  }
  try {
    options_.drafter->release(text, is_whole);
  } catch (...) {  // it is not asked again
  }
}

void Speculation::show(std::span<const int32_t> tokens) {
  guarded([&] { options_.drafter->commit(text_, tokens); });
}

void Speculation::observe(int64_t first, std::span<const float> rows) {
  guarded([&] {
    const Loan loan(*this);
    options_.drafter->observe(text_, first, rows);
  });
}

void Speculation::restart() {
  is_asked_ = false;
  num_drafts_ = 0;
  if (is_on()) guarded([&] { options_.drafter->truncate(text_, before_); });
}

int32_t Speculation::wanted(int64_t most) const {
  if (!is_on() || is_asked_) return 0;
  return static_cast<int32_t>(std::min<int64_t>(most, gate_.limit()));
}

bool Speculation::rests() {
  if (!is_on()) return true;
  if (gate_.limit() > 0) return false;
  gate_ahead_ = gate_;
  gate_ahead_.pass(0, 0);
  return gate_ahead_.limit() == 0;
}

DraftProposal Speculation::request(int32_t count) {
  is_asked_ = true;
  num_requested_ = count;
  const auto room = static_cast<size_t>(count);
  DraftProposal proposal{text_, std::span(drafts_).first(room)};
  std::iota(parents_.begin(), parents_.end(), -1);  // who leaves it so guesses a chain
  if (takes_trees_) {
    proposal.parents = std::span(parents_).first(room);
    proposal.max_depth = options_.max_depth;
  }
  return proposal;
}

void Speculation::check(int32_t count) const {
  if (count < 0 || count > num_requested_) {
    throw Error(ErrorKind::kInvalidArgument, "it guessed " + std::to_string(count) +
                                                 " tokens; expected 0 to " +
                                                 std::to_string(num_requested_));
  }
  for (const int32_t token : std::span(drafts_).first(static_cast<size_t>(count))) {
    if (token >= 0 && token < vocab_size_) continue;
    throw Error(ErrorKind::kInvalidArgument, "it guessed token " + std::to_string(token) +
                                                 "; expected ids from 0 to " +
                                                 std::to_string(vocab_size_ - 1));
  }
}

void Speculation::check_tree(int32_t count) const {
  const auto refuse = [](int32_t draft, const std::string& what) {
    throw Error(ErrorKind::kInvalidArgument,
                "guess " + std::to_string(draft) + " of a tree " + what);
  };
  for (int32_t i = 0; i < count; ++i) {
    const int32_t parent = parents_[static_cast<size_t>(i)];
    if (parent < -1 || parent >= i) {
      refuse(i, "stands behind guess " + std::to_string(parent) + "; expected -1 to " +
                    std::to_string(i - 1));
    }
    for (int32_t other = 0; other < i; ++other) {
      const auto at = static_cast<size_t>(other), own = static_cast<size_t>(i);
      if (parents_[at] == parent && drafts_[at] == drafts_[own]) {
        refuse(i, "is the same as guess " + std::to_string(other) + "; expected another token");
      }
    }
  }
}

// Leaves out those of the first `count` guesses that `keep` refuses, and what stands behind them.
// `keep` is given the token and which of the guesses that stay it stands behind.
template <typename Keep>
void Speculation::keep_drafts(size_t count, Keep&& keep) {
  num_drafts_ = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t parent = parents_[i];
    const int32_t above = parent < 0 ? parent : moved_[static_cast<size_t>(parent)];
    const bool stays = above != kGone && keep(drafts_[i], above);
    moved_[i] = stays ? static_cast<int32_t>(num_drafts_) : kGone;
    if (!stays) continue;
    drafts_[num_drafts_] = drafts_[i];
    parents_[num_drafts_] = above;
    ++num_drafts_;
  }
}

// Leaves out ends, which nothing follows, what stands behind them, and what is too deep in a tree.
void Speculation::drop_ends(int32_t count) {
  keep_drafts(static_cast<size_t>(count), [this](int32_t token, int32_t above) {
    int32_t depth = 1;
    for (; takes_trees_ && above >= 0; above = parents_[static_cast<size_t>(above)]) ++depth;
    const bool is_too_deep = takes_trees_ && depth > options_.max_depth;
    return !is_too_deep && std::ranges::find(end_ids_, token) == end_ids_.end();
  });
}

void Speculation::take(const DraftProposal& proposal, ConstraintGuide* guide,
                       const JumpForward* jump) {
  if (!is_on()) return;
  const int32_t count = proposal.count;
  try {
    check(count);
    if (takes_trees_) check_tree(count);
  } catch (const Error& error) {
    return fail(error.what());
  }
  counts_.num_replaced_draft_tokens += std::max(proposal.replaced, 0);
  drop_ends(count);
  if (guide == nullptr || num_drafts_ == 0) return;
  DraftWalk walk(*guide, jump, masks_);
  keep_drafts(num_drafts_, [&walk](int32_t token, int32_t above) {
    return walk.add(token, static_cast<size_t>(int64_t{above} + 1));
  });
  walk.end();
}

void Speculation::ask(int32_t count, ConstraintGuide* guide, const JumpForward* jump) {
  DraftProposal proposal = request(count);
  const double before = counts_.draft_seconds;
  guarded([&] {
    const Loan loan(*this);
    options_.drafter->propose({&proposal, 1});
  });
  gate_.drafted(counts_.draft_seconds - before, count);
  take(proposal, guide, jump);
}

void Speculation::ask_together(Drafter& drafter, std::span<Speculation* const> answers,
                               std::span<DraftProposal> proposals) {
  const SpeculationClock::time_point start = SpeculationClock::now();
  std::string problem;
  bool is_cancelled = false;  // for one of them
  try {
    const Loan loan(*answers.front());
    drafter.propose(proposals);
  } catch (const Error& error) {
    is_cancelled = error.kind() == ErrorKind::kCancelled &&
                   std::ranges::any_of(answers, &Speculation::is_cancelled);
    problem = is_cancelled ? "" : error.what();
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = kUnknownProblem;
  }
  for (DraftProposal& proposal : proposals) {
    if (is_cancelled) proposal.count = 0;  // the others go on without for a pass
  }
  const std::chrono::duration<double> taken = SpeculationClock::now() - start;
  for (Speculation* answer : answers) {
    const double share = taken.count() / static_cast<double>(answers.size());
    answer->add_time(share);
    answer->gate_.drafted(share, answer->num_requested_);
    if (!problem.empty()) answer->fail(problem);
  }
}

std::span<const int32_t> Speculation::step_tokens(int32_t last, int64_t most) {
  const auto count = std::min(num_drafts_, static_cast<size_t>(std::max<int64_t>(most, 0)));
  step_tokens_.assign(1, last);
  step_parents_.clear();
  bool is_chain = true;
  for (size_t i = 0; i < count; ++i) is_chain = is_chain && std::cmp_equal(parents_[i] + 1, i);
  if (is_chain) {
    step_tokens_.insert(step_tokens_.end(), drafts_.begin(),
                        drafts_.begin() + static_cast<ptrdiff_t>(count));
  } else {
    add_behind(-1, count);
  }
  return step_tokens_;
}

// Adds those of the first `count` guesses that stand behind `parent`, which was added last. Each
// path is followed to its end, so that as few branches begin as there can be.
void Speculation::add_behind(int32_t parent, size_t count) {
  const auto place = static_cast<int32_t>(step_tokens_.size()) - 1;
  for (auto i = static_cast<size_t>(int64_t{parent} + 1); i < count; ++i) {
    if (parents_[i] != parent) continue;
    step_tokens_.push_back(drafts_[i]);
    step_parents_.push_back(place);
    add_behind(static_cast<int32_t>(i), count);
  }
}

void Speculation::begin_pass(int64_t position) {
  first_position_ = position;
  place_ = 0;
  if (draw_ != nullptr) draw_->set_drafts(position, std::span(step_tokens_).subspan(1));
  pass_began_ = SpeculationClock::now();
}

void Speculation::end_pass(int64_t proposed, int64_t accepted, bool is_rejected) {
  ++counts_.num_passes;
  if (draw_ != nullptr) draw_->set_drafts(0, {});
  const auto tried = static_cast<int32_t>(proposed), right = static_cast<int32_t>(accepted);
  if (is_on() && gate_.limit() == 0) ++counts_.num_paused_passes;
  gate_.pass(tried, right);
  is_asked_ = false;
  num_drafts_ = 0;
  if (proposed == 0) return;
  const std::chrono::duration<double> taken = SpeculationClock::now() - pass_began_;
  counts_.verify_seconds += taken.count();
  counts_.rejected_seconds +=
      taken.count() * static_cast<double>(proposed - accepted) / static_cast<double>(proposed + 1);
  ++counts_.num_spec_steps;
  counts_.num_draft_tokens += proposed;
  counts_.num_accepted_draft_tokens += accepted;
  counts_.num_discarded_tokens += proposed - accepted;
  counts_.num_rejected_passes += is_rejected ? 1 : 0;
  ++counts_.acceptance_histogram[static_cast<size_t>(accepted)];
  if (is_on()) guarded([&] { options_.drafter->told(text_, tried, right); });
}

std::span<const uint32_t> Speculation::allowed_tokens(int64_t position,
                                                      ConstraintDecision& decision) {
  // A pass may be made again, and of a chain all masks may be asked for before anything is chosen.
  if (has_known_masks()) {
    place_ = static_cast<size_t>(position - first_position_);
  } else if (position == first_position_) {
    place_ = 0;
  }
  const int32_t attempt = decision.attempt;
  const auto mask = masks_.of(place_, decision);
  decision.attempt = attempt;
  return mask;
}

void Speculation::chosen(int64_t position, int32_t token) {
  if (position - first_position_ == masks_.depth(place_)) place_ = masks_.behind(place_, token);
}

}  // namespace vitrine::engine
