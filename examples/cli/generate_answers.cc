// SPDX-License-Identifier: Apache-2.0
#include "generate_answers.h"

#include <algorithm>
#include <optional>

#include "prompt_bar.h"

namespace cli {

namespace {

Answers make_several(vitrine::Stepper& model, const GenerateArguments& arguments,
                     const GenerateRequest& request, const AnswerStart& start,
                     AnswerOutput& output) {
  Answers answers;
  answers.may_be_cut = true;
  answers.reason = vitrine::stop_reason_name(vitrine::StopReason::kCancelled);
  answers.candidates =
      generate_candidates(model, request.prompt().ids, request.generation, arguments.n_best,
                          request.tokenizer, arguments.sampling.stop);
  if (!answers.candidates.empty()) {
    answers.result = answers.candidates.front().result;
    answers.result.constraint = {};
    answers.result.speculation = {};
    for (const Candidate& candidate : answers.candidates) {
      answers.result.constraint += candidate.result.constraint;
      answers.result.speculation += candidate.result.speculation;
    }
    answers.reason = answers.candidates.front().reason;
  }
  output.show(answers.candidates, start);
  return answers;
}

Answers make_one(vitrine::Stepper& model, const GenerateArguments& arguments,
                 const GenerateRequest& request, const AnswerStart& start, AnswerOutput& output) {
  const auto beginning = request.constraint ? request.constraint->fork() : nullptr;
  std::optional<AnswerText> answer(std::in_place, request.tokenizer, arguments.sampling.stop,
                                   beginning.get(), request.prompt().format);
  int32_t attempt = 0;
  const auto on_token = [&](const vitrine::TokenEvent& event) {
    if (event.attempt != attempt) {
      attempt = event.attempt;
      output.restart(attempt);
      answer.emplace(request.tokenizer, arguments.sampling.stop, beginning.get(),
                     request.prompt().format);
    }
    const std::string piece = answer->add(event);
    output.add(event, piece, answer->take_reasoning());
    return !answer->stopped() && interrupt_signal() == 0 && !output.is_lost();
  };
  output.start(start);
  Answers answers;
  vitrine::GenerateResult& result = answers.result;
  {
    PromptBar bar(std::ssize(request.prompt().ids));
    vitrine::GenerateOptions options = request.generation;
    options.on_progress = bar.teller();
    result = vitrine::generate(model, request.prompt().ids, options, on_token);
    answers.prompt_done = bar.done();
  }
  const std::string rest = answer->finish();
  if (answer->is_cut_whole()) result.is_complete = true;
  answers.reason = answer->reason(result.reason);
  answers.may_be_cut = result.reason == vitrine::StopReason::kCancelled && !answer->stopped();
  const std::string failure = unfinished(result);
  if (answer->parts() != nullptr) answers.parts = *answer->parts();
  output.finish(rest, answer->take_reasoning(), result, failure.empty(), answers.parts);
  AnswerEnd end = answer_end(result, output.text(), answers.reason, failure);
  end.parts = answers.parts;
  output.end(end);
  return answers;
}

}  // namespace

double Answers::tokens_per_second() const {
  return result.decode_seconds > 0 ? static_cast<double>(num_steps()) / result.decode_seconds : 0;
}

Answers make_answers(vitrine::Stepper& model, const GenerateArguments& arguments,
                     const GenerateRequest& request, AnswerOutput& output) {
  const AnswerStart start{.model = arguments.model,
                          .prompt_tokens = request.prompt_tokens(),
                          .seed = arguments.sampling.sampler.seed};
  return arguments.is_several() ? make_several(model, arguments, request, start, output)
                                : make_one(model, arguments, request, start, output);
}

nlohmann::ordered_json answers_json(const GenerateArguments& arguments,
                                    const GenerateRequest& request, const Answers& answers,
                                    const std::string& text, double load_seconds,
                                    bool model_is_invariant) {
  const vitrine::GenerateResult& result = answers.result;
  nlohmann::ordered_json json;
  json["text"] = text;
  add_parts(answers.parts, json);
  json["tokens"] = result.tokens;
  json["reason"] = answers.reason;
  json["prompt_tokens"] = result.prompt_tokens;
  json["seed"] = seed_json(arguments.sampling.sampler.seed);
  if (request.grammar) json["constraint"] = constraint_json(result);
  if (arguments.constraint.lenient)
    json["constraint"]["weakened"] = weakened_json(*request.grammar);
  if (request.is_conversation) json["prompt"] = request.prompt().text;
  json["timings"] = {{"load_seconds", load_seconds},
                     {"prefill_seconds", result.prefill_seconds},
                     {"decode_seconds", result.decode_seconds}};
  json["tokens_per_second"] = answers.tokens_per_second();
  if (arguments.speculation.is_given()) json["speculation"] = speculation_json(result.speculation);
  if (arguments.lengths.context_shift) {
    // It hangs on where the context ended.
    json["invariant"] = result.shifts.empty() && model_is_invariant;
    json["context_shifts"] = nlohmann::ordered_json::array();
    for (const vitrine::ContextShift& shift : result.shifts) {
      json["context_shifts"].push_back(
          {{"tokens", shift.tokens}, {"kept", shift.kept}, {"dropped", shift.dropped}});
    }
  }
  if (arguments.sampling.explain) json["sampler"] = arguments.sampling.explanation();
  if (arguments.logprobs > 0) json["logprobs"] = logprobs_json(result.logprobs, request.tokenizer);
  if (arguments.is_several()) {
    json["candidates"] = candidates_json(answers.candidates, request.tokenizer);
  }
  json["audit"] = arguments.log.path.empty() ? nlohmann::ordered_json(nullptr)
                                             : nlohmann::ordered_json(arguments.log.path);
  return json;
}

}  // namespace cli
