// SPDX-License-Identifier: Apache-2.0
#include "vitrine/generate.h"

#include "core/cancel_watch.h"
#include "vitrine/engine.h"

namespace vitrine {

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kLength: return "length";
    case StopReason::kEndOfText: return "end of text";
    case StopReason::kContextFull: return "context full";
    case StopReason::kCancelled: return "cancelled";
    case StopReason::kComplete: return "complete";
    case StopReason::kDeadlock: return "deadlock";
    case StopReason::kRejected: return "rejected";
    case StopReason::kFailed: return "failed";
    case StopReason::kLengthConstrained: return "length_constrained";
  }
  return "?";
}

namespace {

// What a step throws that a host has ended, which is no failure.
bool is_of_flag(const Error& error, const Stepper& stepper, const GenerateOptions& options) {
  return error.kind() == ErrorKind::kCancelled &&
         (core::is_raised(options.cancelled) || core::is_raised(stepper.options().cancelled));
}

void take_step(Stepper& stepper, Generation& generation) {
  StepInput input = generation.next_input();
  try {
    generation.accept(stepper.step({&input, 1}));
  } catch (const Error& error) {
    // There may be room for the token alone.
    if (error.kind() != ErrorKind::kOutOfMemory || input.num_drafts == 0 || generation.finished()) {
      throw;
    }
    input = generation.next_input(1, 1);
    generation.accept(stepper.step({&input, 1}));
  }
}

}  // namespace

GenerateResult generate(Stepper& stepper, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  Generation generation(stepper, prompt, options, on_token);
  while (!generation.finished()) {
    try {
      take_step(stepper, generation);
    } catch (const Error& error) {
      if (!is_of_flag(error, stepper, options) || generation.finished()) throw;
      generation.cancel();
    }
  }
  return generation.take_result();
}

}  // namespace vitrine
