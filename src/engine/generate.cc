#include <algorithm>
#include <chrono>

#include "vitrine/group.h"

namespace vitrine {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A sequence that is released whatever happens.
template <typename Stepper>
class OwnedSequence {
 public:
  explicit OwnedSequence(Stepper& engine) : engine_(engine), id_(engine.create_sequence()) {}
  ~OwnedSequence() { engine_.release(id_); }
  OwnedSequence(const OwnedSequence&) = delete;
  OwnedSequence& operator=(const OwnedSequence&) = delete;
  SequenceId id() const { return id_; }

 private:
  Stepper& engine_;
  SequenceId id_;
};

// An engine, or a federation in its place.
template <typename Stepper>
GenerateResult generate_with(Stepper& engine, SequenceId sequence, std::span<const int32_t> prompt,
                             const GenerateOptions& options,
                             const std::function<bool(const TokenEvent&)>& on_token) {
  const int64_t context = engine.options().max_context;
  const int64_t held = engine.length(sequence);
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "the prompt has no token; expected at least one");
  }
  if (prompt_length > context - held) {
    throw Error(ErrorKind::kInvalidArgument,
                "the prompt has " + std::to_string(prompt_length) + " tokens" +
                    (held > 0 ? " behind the " + std::to_string(held) + " of its sequence" : "") +
                    ", but the context holds " + std::to_string(context) + "; shorten the prompt");
  }
  if (options.max_new_tokens < 0) {
    throw Error(
        ErrorKind::kInvalidArgument,
        "max_new_tokens is " + std::to_string(options.max_new_tokens) + "; expected 0 or more");
  }
  SamplerPipeline sampler = SamplerPipeline::from_options(options.sampler);
  GenerateResult result;
  result.prompt_tokens = prompt_length;
  result.tokens.reserve(static_cast<size_t>(
      std::min<int64_t>(options.max_new_tokens, context - held - prompt_length + 1)));

  StepInput input;
  input.sequence = sequence;
  input.sampler = &sampler;
  input.seed = options.sampler.seed;

  // Prefill, in chunks; with log-probabilities of the prompt every token needs a row.
  const auto chunk =
      static_cast<size_t>(options.prompt_logprobs ? std::min(engine.options().max_step_tokens,
                                                             engine.options().max_logit_rows)
                                                  : engine.options().max_step_tokens);
  const Clock::time_point start = Clock::now();
  int32_t next = -1;
  for (size_t first = 0; first < prompt.size(); first += chunk) {
    const size_t count = std::min(chunk, prompt.size() - first);
    const bool last = first + count == prompt.size();
    input.tokens = prompt.subspan(first, count);
    input.next_token = last ? -1 : prompt[first + count];
    const bool wants_token = last && options.max_new_tokens > 0;
    input.rows = options.prompt_logprobs ? StepInput::Rows::kAll
                 : wants_token           ? StepInput::Rows::kLast
                                         : StepInput::Rows::kNone;
    const std::span<const StepOutput> outputs = engine.step({&input, 1});
    if (wants_token) next = outputs.back().token;
  }
  result.prefill_seconds = seconds_since(start);
  if (options.max_new_tokens == 0) return result;

  const auto is_end = [&ends = engine.summary().eos_token_ids,
                       &more = options.stop_token_ids](int32_t token) {
    return std::ranges::find(ends, token) != ends.end() ||
           std::ranges::find(more, token) != more.end();
  };
  const Clock::time_point decode_start = Clock::now();
  input.next_token = -1;
  input.rows = StepInput::Rows::kLast;
  while (true) {
    const int64_t position = held + prompt_length + static_cast<int64_t>(result.tokens.size());
    result.tokens.push_back(next);
    if (on_token && !on_token({next, position})) {
      result.reason = StopReason::kCancelled;
      break;
    }
    if (!options.ignore_end_of_text && is_end(next)) {
      result.reason = StopReason::kEndOfText;
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) >= options.max_new_tokens) {
      result.reason = StopReason::kLength;
      break;
    }
    if (position >= context) {
      result.reason = StopReason::kContextFull;
      break;
    }
    input.tokens = {&next, 1};
    next = engine.step({&input, 1})[0].token;
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kLength: return "length";
    case StopReason::kEndOfText: return "end of text";
    case StopReason::kContextFull: return "context full";
    case StopReason::kCancelled: return "cancelled";
  }
  return "?";
}

GenerateResult generate(Engine& engine, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  const OwnedSequence sequence(engine);
  return generate_with(engine, sequence.id(), prompt, options, on_token);
}

GenerateResult generate(Engine& engine, SequenceId sequence, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  return generate_with(engine, sequence, prompt, options, on_token);
}

GenerateResult generate(Federation& federation, std::span<const int32_t> prompt,
                        const GenerateOptions& options,
                        const std::function<bool(const TokenEvent&)>& on_token) {
  const OwnedSequence sequence(federation);
  return generate_with(federation, sequence.id(), prompt, options, on_token);
}

}  // namespace vitrine
