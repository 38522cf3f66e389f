// SPDX-License-Identifier: Apache-2.0
#include "engine/run/lone_failures.h"

#include <algorithm>

#include "engine/run/step_rows.h"

namespace vitrine::engine {

namespace {

StepFailure current_failure(SequenceId sequence) {
  StepFailure failure{sequence, ErrorKind::kInternal, "it threw what is no std::exception",
                      std::current_exception()};
  try {
    throw;
  } catch (const Error& error) {
    failure.kind = error.kind();
    failure.message = error.what();
  } catch (const std::exception& error) {
    failure.message = error.what();
  } catch (...) {
  }
  return failure;
}

// What a host has ended, it has ended for all.
bool is_cancelled(const StepFailure& failure) { return failure.kind == ErrorKind::kCancelled; }

}  // namespace

bool LoneFailures::has_failed(SequenceId sequence) const {
  return std::ranges::find(failures_, sequence, &StepFailure::sequence) != failures_.end();
}

bool LoneFailures::take_out(std::span<const StepInput> all, std::span<const StepInput> those,
                            SequenceId sequence) {
  const bool is_there =
      sequence != 0 && std::ranges::find(those, sequence, &StepInput::sequence) != those.end();
  if (is_there) failures_.push_back(current_failure(sequence));
  if (!is_there || is_cancelled(failures_.back())) {
    failures_.clear();
    return false;
  }
  left_.clear();
  std::ranges::copy_if(all, std::back_inserter(left_),
                       [this](const StepInput& input) { return !has_failed(input.sequence); });
  return true;
}

std::span<const StepOutput> LoneFailures::step_others(
    std::span<const StepInput> inputs,
    const std::function<std::span<const StepOutput>(std::span<const StepInput>)>& run,
    const std::function<SequenceId()>& blamed,
    const std::function<int64_t(SequenceId)>& length_of) {
  std::span<const StepOutput> outputs;
  for (bool is_done = false; !is_done;) {
    if (left_.empty()) {  // all of them fail: so does the step
      const std::exception_ptr first = failures_.front().error;
      failures_.clear();
      std::rethrow_exception(first);
    }
    try {
      outputs = run(left_);
      is_done = true;
    } catch (...) {
      if (!take_out(inputs, left_, blamed())) throw;
    }
  }
  is_whole_ = false;
  outputs_.clear();
  run_outputs_.clear();
  size_t next = 0;
  for (const StepInput& input : inputs) {
    const size_t count = StepRows::count(input);
    const bool is_failed = has_failed(input.sequence);
    for (size_t row = 0; row < count; ++row) {
      if (!is_failed) {
        run_outputs_.push_back(static_cast<std::ptrdiff_t>(next));
        outputs_.push_back(outputs[next++]);
        continue;
      }
      StepOutput output;
      output.sequence = input.sequence;
      output.position =
          length_of(input.sequence) + static_cast<int64_t>(input.tokens.size() - count + row);
      output.failed = true;
      run_outputs_.push_back(-1);
      outputs_.push_back(output);
    }
  }
  return outputs_;
}

}  // namespace vitrine::engine

namespace vitrine {

int64_t Stepper::row_count(const StepInput& input) {
  return static_cast<int64_t>(engine::StepRows::count(input));
}

}  // namespace vitrine
