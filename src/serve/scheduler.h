// SPDX-License-Identifier: Apache-2.0
// Decides what each step brings: whose prompts, whose tokens, and what of the cache stays.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "serve/block_teller.h"
#include "serve/prefix_tree.h"
#include "serve/record_tap.h"
#include "serve/running_answer.h"
#include "serve/step_costs.h"
#include "serve/step_plan.h"
#include "serve/stored_prefixes.h"
#include "serve/waiting_line.h"
#include "vitrine/audit.h"
#include "vitrine/serve.h"

namespace vitrine::serve {

/// Continuous batching over a stepper. It launches nothing but Stepper::step(), and what it decides
/// changes no bit of an answer on the fused path. Not thread-safe.
class Scheduler {
 public:
  /// Returns seconds; never goes back.
  using Clock = std::function<double()>;

  /// `stepper` must stay. Throws kInvalidArgument for options out of range.
  Scheduler(Stepper& stepper, const ServerOptions& options, Clock clock);
  /// Ends all that runs or waits, as cancelled.
  ~Scheduler();

  /// Takes in a job that is ready.
  void add(std::unique_ptr<Job> job);
  /// Runs one step. False where there was none to run: nobody is here, or all are paused.
  bool step();
  /// Ends all that runs with an error, which nobody can go on behind.
  void fail_all(const Error& error);
  bool is_idle() const { return running_.empty() && waiting_.empty(); }
  const ServerOptions& options() const { return options_; }
  /// Gives up all prefixes that nobody uses.
  void clear_cache();
  /// Keeps prefixes of `engine`, which is the stepper's, in a store from now on.
  void keep_in(Engine& engine, std::unique_ptr<PrefixStore> store);
  /// Has `listener`, which must stay, told of blocks from now on, as those of `model`. Nothing is
  /// kept yet.
  void tell_blocks_to(KvBlockListener& listener, const std::string& model);
  /// Whether what the recorder says stays beside prefixes.
  bool keeps_words() const { return keeps_words_; }
  /// Returns whether somebody waits for the store alone, for a while.
  bool awaits_store() const { return stored_ != nullptr && stored_->is_awaited(); }
  /// Returns whether the store opens, reads or writes something.
  bool is_storing() const { return stored_ != nullptr && stored_->is_working(); }
  /// Waits until all prefixes are in the store's files.
  void store_prefixes();
  std::vector<std::string> store_notes() const {
    return stored_ != nullptr ? stored_->notes() : std::vector<std::string>();
  }
  /// What it did; the counts of requests are the server's.
  ServerTelemetry telemetry() const;

 private:
  using Answers = std::vector<std::unique_ptr<RunningAnswer>>;

  static void end_waiting(std::unique_ptr<Job> job);
  void drop_cancelled();
  int64_t num_placed() const;
  void resume_preempted();
  bool resume(RunningAnswer& answer);
  RunningAnswer* first_asking(double now) const;
  bool goes_before(const RunningAnswer& answer, size_t chosen, double now) const;
  bool free_place();
  bool release_kept();
  void admit();
  bool admit(std::unique_ptr<Job> job);
  bool may_reuse(const Job& job) const;
  PrefixTree::Match find(const Job& job) const;
  int64_t uncached_tokens(Job& job);
  bool waits_for_prefix(const Job& job, const PrefixTree::Match& match);
  bool has_room(int64_t length, int64_t shared);
  bool make_room(int64_t length, int64_t shared, const RunningAnswer* except);
  bool holds_nothing() const;

  bool plan();
  void plan_answers();
  void plan_prompts();
  void add_input(RunningAnswer& answer, int64_t most_tokens, int64_t most_rows);
  bool make_fit();
  bool evict();
  const RunningAnswer* first_planned() const;
  bool preempt_one(const RunningAnswer* except, bool idle_alone);
  void run();
  void accept(size_t input, std::span<const StepOutput> outputs);
  void keep_prefixes(RunningAnswer& answer);
  PrefixTree::Node* keep(const RunningAnswer& answer, int64_t length);
  void tell_blocks();
  void end(RunningAnswer& answer, std::optional<Error> error);
  void remove_ended();
  void tell_ended();

  Stepper& stepper_;
  ServerOptions options_;
  Clock clock_;
  const int64_t block_size_;
  const bool has_states_;
  SequenceSinks sinks_;
  RecordTap tap_;
  const bool keeps_words_;               // what the recorder says stays beside prefixes
  std::unique_ptr<BlockTeller> teller_;  // null: nobody is told of blocks
  PrefixTree tree_;
  std::unique_ptr<StoredPrefixes> stored_;  // null: prefixes end with the scheduler
  std::vector<PrefixTree::Node*> pinned_;
  WaitingLine waiting_;
  StepCosts costs_;
  Answers running_;  // in the order in which they were admitted
  struct Ended {
    std::function<void(JobEnd)> on_end;
    JobEnd end;
  };
  std::vector<Ended> ended_;  // who is told once their sequences are gone
  // The step that is planned:
  std::vector<RunningAnswer*> answers_, prompts_;
  StepPlan plan_;
  ServerTelemetry telemetry_;
};

}  // namespace vitrine::serve
