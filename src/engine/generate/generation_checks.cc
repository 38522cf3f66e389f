// SPDX-License-Identifier: Apache-2.0
#include "engine/generate/generation_checks.h"

#include "engine/run/step_checks.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

void check_generation(const Stepper& stepper, std::span<const int32_t> prompt, int64_t held,
                      const GenerateOptions& options) {
  const int64_t context = stepper.options().max_context;
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorKind::kInvalidArgument, what);
  };
  if (stepper.options().hidden_states_only) {
    refuse(
        "the model was loaded for hidden states alone (engine option 'hidden_states_only'), and "
        "chooses no tokens; expected it without that option");
  }
  if (prompt.empty()) refuse("the prompt has no token; expected at least one");
  require_token_ids(prompt, stepper.summary().vocab_size);
  if (prompt_length > context - held) {
    refuse("the prompt has " + std::to_string(prompt_length) + " tokens" +
           (held > 0 ? " behind the " + std::to_string(held) + " of its sequence" : "") +
           ", but the context holds " + std::to_string(context) + "; shorten the prompt");
  }
  if (options.context_shift) {
    if (options.constraint != nullptr || options.speculation.drafter != nullptr) {
      refuse(
          "context_shift takes an answer without a constraint and without a drafter, which follow "
          "all of a text; expected neither, or context_shift to be false");
    }
    if (options.context_keep < 0 || options.context_keep > context - 2) {
      refuse("context_keep is " + std::to_string(options.context_keep) +
             ", and the context holds " + std::to_string(context) +
             "; expected 0 to two less than that");
    }
  }
  if (options.max_new_tokens < 0) {
    refuse("max_new_tokens is " + std::to_string(options.max_new_tokens) + "; expected 0 or more");
  }
  if (options.logprobs < -1) {
    refuse("logprobs is " + std::to_string(options.logprobs) +
           "; expected a number of alternatives, or -1 for none");
  }
  if (options.prompt_scores < -1) {
    refuse("prompt_scores is " + std::to_string(options.prompt_scores) +
           "; expected a number of alternatives, or -1 for none");
  }
  if (options.prompt_scores >= 0 && !stepper.options().keep_logits) {
    refuse("scores of a prompt need its logits; expected EngineOptions::keep_logits");
  }
  if (options.logprobs >= 0 && !stepper.options().keep_logits) {
    refuse("logprobs of generated tokens need their logits; expected EngineOptions::keep_logits");
  }
  if (options.deadlock_retries < 0) {
    refuse("deadlock_retries is " + std::to_string(options.deadlock_retries) +
           "; expected 0 or more");
  }
  if (options.validator_retries < 0) {
    refuse("validator_retries is " + std::to_string(options.validator_retries) +
           "; expected 0 or more");
  }
  if (options.validator && options.constraint == nullptr) {
    refuse("a validator was given without a constraint; expected both, or none");
  }
}

}  // namespace vitrine::engine
