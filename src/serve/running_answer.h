// SPDX-License-Identifier: Apache-2.0
// An answer that is being made, with its sequence.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "serve/job.h"
#include "serve/prefix_tree.h"
#include "vitrine/audit.h"

namespace vitrine::serve {

/// Owns the sequence of a job and its Generation. Not thread-safe.
class RunningAnswer {
 public:
  /// Begins with what was found of the prompt, or with nothing. Throws what Stepper::attach and
  /// SequenceSinks::add throw.
  RunningAnswer(Stepper& stepper, SequenceSinks& sinks, std::unique_ptr<Job> job,
                const PrefixTree::Match& match);
  ~RunningAnswer();
  RunningAnswer(const RunningAnswer&) = delete;
  RunningAnswer& operator=(const RunningAnswer&) = delete;

  /// Makes the Generation; throws what that throws.
  void begin();
  Job& job() { return *job_; }
  const Job& job() const { return *job_; }
  std::unique_ptr<Job> take_job() { return std::move(job_); }
  SequenceId sequence() const { return sequence_; }
  Generation& generation() { return *generation_; }
  bool finished() const { return !generation_ || generation_->finished(); }
  int64_t length() const { return stepper_.length(sequence_); }
  /// More than the last token of its prompt is not computed yet.
  bool is_in_prompt() const { return left_of_prompt() > 1; }
  int64_t left_of_prompt() const { return std::ssize(job_->prompt) - length(); }
  /// Its reader is behind: it takes part in no step meanwhile.
  bool is_paused() const { return job_->is_paused && job_->is_paused(); }
  /// Somebody reads it and is behind: who has said nothing has nobody who could be.
  bool is_behind() const { return !generation_->result().tokens.empty() && is_paused(); }
  /// It takes part in steps.
  bool runs() const { return state_ == State::kRuns; }
  /// Its keys and values were not given up.
  bool holds_blocks() const { return runs() || kept_ != 0; }
  /// How many positions it goes on behind at once when it gets its place again.
  int64_t kept_length() const;
  /// It keeps something of before it gave its place.
  bool keeps_something() const { return kept_ != 0; }
  /// Gives them up: who had a place and whose reader keeps up waits for room then, and others give
  /// the place, too.
  void preempt();
  /// Gives the place to others, since the reader is behind, and keeps its keys and values.
  void give_place();
  /// Lets go of what it kept, which a step has taken up again.
  void release_kept();
  /// Its reader was behind and it gave its place.
  bool gave_place() const { return state_ == State::kGavePlace; }
  void resume() { state_ = State::kRuns; }
  /// It is one of ServerOptions::max_running.
  bool is_placed() const { return runs() || waits_for_room(); }
  /// It is placed, and memory alone is wanting.
  bool waits_for_room() const { return state_ == State::kWaitsForRoom; }
  /// It gave its place, and its reader has caught up.
  bool asks_again() const { return state_ == State::kAsksAgain; }
  /// Looks, where it gave its place, whether the reader has caught up; if so, it waits for a place
  /// from `now` on.
  void ask_again(double now);

  /// Its prompt is to be computed up to just there in some step, since others need it so far.
  void add_cut(int64_t position);
  /// How many of its tokens the next step may bring at most, for the cuts' sake.
  int64_t tokens_to_cut() const;
  /// The cut at which it stands goes; false: it stands at none.
  bool take_cut();

  /// The node of the tree that it keeps in place, in exchange for the last one.
  void hold(PrefixTree::Node* node);
  bool is_prompt_kept = false;  ///< its prompt stands in the tree

 private:
  enum class State : uint8_t { kRuns, kWaitsForRoom, kGavePlace, kAsksAgain };

  Stepper& stepper_;
  SequenceSinks& sinks_;
  std::unique_ptr<Job> job_;
  SequenceId sequence_ = 0;
  std::optional<Generation> generation_;
  State state_ = State::kRuns;
  PrefixId kept_ = 0;          // of what it had when it gave its place; 0: nothing
  std::vector<int64_t> cuts_;  // ascending
  PrefixTree::Node* node_ = nullptr;
};

}  // namespace vitrine::serve
