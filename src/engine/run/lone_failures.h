// SPDX-License-Identifier: Apache-2.0
// Takes inputs out that fail alone. The step is made again without them, and the others have what
// they have without them. One token has one result whoever stands beside it.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "vitrine/step.h"

namespace vitrine::engine {

/// Runs `work`; where it throws, `blamed` is set to the sequence whose input was at fault.
template <typename Work>
decltype(auto) blame(SequenceId& blamed, SequenceId sequence, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    blamed = sequence;
    throw;
  }
}

/// Keeps what failed in the last step. Not thread-safe.
class LoneFailures {
 public:
  /// Makes a step. `run(inputs)` makes it whole, or throws and has changed nothing; `blamed()`
  /// names the sequence whose input it then was, 0: no one's alone; `length_of(sequence)` is how
  /// many tokens it holds.
  template <typename Run, typename Blamed, typename Length>
  std::span<const StepOutput> step(std::span<const StepInput> inputs, Run&& run, Blamed&& blamed,
                                   Length&& length_of) {
    failures_.clear();
    is_whole_ = true;
    try {
      return run(inputs);
    } catch (...) {
      if (inputs.size() < 2 || !take_out(inputs, inputs, blamed())) throw;
    }
    return step_others(inputs, run, blamed, length_of);
  }

  std::span<const StepFailure> failures() const { return failures_; }
  /// Returns which output of the run that succeeded an output of step() is; -1 for one of none.
  std::ptrdiff_t run_output(size_t output) const {
    return is_whole_ ? static_cast<std::ptrdiff_t>(output) : run_outputs_[output];
  }
  /// Returns how many outputs step() gave, where the run that succeeded gave `of_run`.
  size_t count(size_t of_run) const { return is_whole_ ? of_run : outputs_.size(); }

 private:
  std::span<const StepOutput> step_others(
      std::span<const StepInput> inputs,
      const std::function<std::span<const StepOutput>(std::span<const StepInput>)>& run,
      const std::function<SequenceId()>& blamed,
      const std::function<int64_t(SequenceId)>& length_of);
  /// Makes left_ of `those` without the one that the current exception is of. Returns false where
  /// it is of all.
  bool take_out(std::span<const StepInput> all, std::span<const StepInput> those,
                SequenceId sequence);
  bool has_failed(SequenceId sequence) const;

  std::vector<StepFailure> failures_;
  std::vector<StepInput> left_;
  std::vector<StepOutput> outputs_;
  std::vector<std::ptrdiff_t> run_outputs_;
  bool is_whole_ = true;
};

}  // namespace vitrine::engine
