// SPDX-License-Identifier: Apache-2.0
// vitrine generate and vitrine federate: text from a prompt, streamed as it is made, with the
// recorder on.
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "batch_answers.h"
#include "closing_note.h"
#include "failure_text.h"
#include "generate_answers.h"
#include "generate_recording.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

/// The files of a federation's members; none for `generate`.
template <typename Model>
std::vector<NamedPath> members_of(const GenerateArguments& arguments) {
  if constexpr (std::is_same_v<Model, vitrine::Engine>) return {};
  return member_paths(load_federation_spec(arguments.model));
}

/// The federation file that MODEL is; none for `generate`.
template <typename Model>
std::optional<vitrine::FederationSpec> find_spec(const GenerateArguments& arguments) {
  if constexpr (std::is_same_v<Model, vitrine::Engine>) return std::nullopt;
  return load_federation_spec(arguments.model);
}

std::unique_ptr<vitrine::Engine> load_model(const vitrine::Engine*,
                                            const GenerateRequest& request) {
  return vitrine::Engine::load(request.model, request.engine);
}
std::unique_ptr<vitrine::Federation> load_model(const vitrine::Federation*,
                                                const GenerateRequest& request) {
  return vitrine::Federation::load(*request.spec, request.engine);
}

/// Returns what --summary prints.
std::string summary_text(vitrine::Stepper& model, const GenerateArguments& arguments,
                         const GenerateRequest& request, const vitrine::GenerateResult& result,
                         double tokens_per_second, Recording& recording) {
  const Summary& summary = recording.summary();
  const vitrine::AuditMode mode = request.engine.audit_mode;
  std::string text = fmt::format(
      "\nspeed       {:.0f} tokens/s ({} tokens, prompt of {} in {:.1f} ms)\n", tokens_per_second,
      result.tokens.size(), result.prompt_tokens, 1000 * result.prefill_seconds);
  text +=
      "audit cost  " + measure_overhead(model, mode, request.prompt().ids, request.context) + "\n";
  text += speculation_text(result.speculation);
  if (mode != vitrine::AuditMode::kNone) text += summary.text(model.summary(), request.tokenizer);
  if (recording.log() != nullptr) text += "log         " + arguments.log.path + "\n";
  return text;
}

std::string closing_remark(const GenerateArguments& arguments, const Answers& answers,
                           const Recording& recording) {
  const vitrine::GenerateResult& result = answers.result;
  const std::string made =
      answers.ended_in_prompt()
          ? fmt::format("{} of the prompt's {} tokens", answers.prompt_done, result.prompt_tokens)
          : fmt::format(
                "{} after a prompt of {}",
                token_speed(std::ssize(result.tokens), answers.num_steps(), result.decode_seconds),
                result.prompt_tokens);
  return fmt::format("{}: {} in {:.1f} ms; seed {}; recorder {}{}{}{}{}{}", answers.reason, made,
                     1000 * result.prefill_seconds, arguments.sampling.sampler.seed,
                     arguments.log.mode, arguments.log.note(recording.log()),
                     stream_note(arguments.log.stream, recording.stream()), constraint_note(result),
                     speculation_note(result.speculation), shift_note(result.shifts));
}

/// Returns the exit code of an answer that nobody cut.
int judge(const vitrine::GenerateResult& result, const vitrine::Tokenizer& tokenizer) {
  if (const std::string why = unfinished(result); !why.empty()) {
    write_note(why);
    write_failures(result.failures, tokenizer);
    return 1;
  }
  if (const std::string warning = squeezed(result); !warning.empty()) write_note(warning);
  return 0;
}

/// Answers several prompts. Returns the exit code.
int run_batch(vitrine::Stepper& model, const GenerateArguments& arguments,
              const GenerateRequest& request, Recording& recording) {
  const BatchResult result = answer_all(model, arguments, request);
  model.set_audit_sink(nullptr);
  recording.finish(result.is_cancelled ? "cancelled" : "end of prompts");
  if (result.lost_output) std::rethrow_exception(result.lost_output);
  if (const std::string& problem = result.counts.speculation.problem; !problem.empty()) {
    write_note(problem);
  }
  if (result.unfinished > 0) {
    write_note(
        fmt::format("{} of {} answers failed, or are not what the constraint asks for; "
                    "\"failure\" in their lines says why",
                    result.unfinished, result.answers));
  }
  write_remark(fmt::format(
      "{}; seed {}; recorder {}{}{}{}{}", batch_remark(result), arguments.sampling.sampler.seed,
      arguments.log.mode, arguments.log.note(recording.log()),
      stream_note(arguments.log.stream, recording.stream()), constraint_note(result.counts),
      speculation_note(result.counts.speculation)));
  if (result.is_cancelled) return 128 + interrupt_signal();
  return result.unfinished > 0 ? 1 : 0;
}

template <typename Model>
int run_generate(GenerateArguments arguments) {
  const Clock::time_point started = Clock::now();
  arguments.check([&] { return members_of<Model>(arguments); });
  const vitrine::EngineOptions options = arguments.engine_options();
  GenerateRequest request(arguments, options, find_spec<Model>(arguments));
  Recording recording;  // destroyed behind the engine
  const auto engine = load_model(static_cast<const Model*>(nullptr), request);
  request.generation.speculation =
      arguments.speculation.apply(*engine, request.tokenizer, request.drafter);
  const double load_seconds = seconds_since(started);
  if (auto* sink = recording.open(arguments, request, engine->summary()); sink != nullptr) {
    engine->set_audit_sink(sink);
  }
  if (request.is_batch) return run_batch(*engine, arguments, request, recording);
  AnswerOutput output({.json = arguments.json,
                       .json_lines = arguments.json_lines,
                       .logprobs = arguments.logprobs,
                       .may_begin_anew = arguments.constraint.may_begin_anew(),
                       .has_tools = arguments.constraint.tools.is_given()},
                      request.tokenizer);
  const Answers answers = make_answers(*engine, arguments, request, output);
  engine->set_audit_sink(nullptr);
  const bool is_cancelled = interrupt_signal() != 0 && answers.may_be_cut;
  recording.finish(answers.reason + shift_note(answers.result.shifts));
  output.rethrow_if_lost();
  if (arguments.json) {
    write_json(answers_json(arguments, request, answers, output.text(), load_seconds,
                            engine->summary().invariant));
  }
  if (arguments.summary && !is_cancelled) {
    write_out(summary_text(*engine, arguments, request, answers.result, answers.tokens_per_second(),
                           recording));
  }
  if (const std::string& problem = answers.result.speculation.problem; !problem.empty()) {
    write_note(problem);
  }
  write_remark(closing_remark(arguments, answers, recording));
  return is_cancelled ? 128 + interrupt_signal() : judge(answers.result, request.tokenizer);
}

}  // namespace

void add_generate(CLI::App& app, Command& command) {
  CLI::App* generate = app.add_subcommand("generate", "Generates text from a prompt");
  const auto arguments = std::make_shared<GenerateArguments>();
  arguments->add_to(*generate, "folder of the model, or a .gguf file", true);
  generate->callback([arguments, &command] {
    if (!arguments->has_prompt()) throw CLI::RequiredError("--prompt");
    command = [arguments] { return run_generate<vitrine::Engine>(*arguments); };
  });
}

void add_federated_generation(CLI::App& federate, Command& command) {
  const auto arguments = std::make_shared<GenerateArguments>();
  arguments->add_to(federate, "the federation file", false);
  federate.callback([arguments, &command, &federate] {
    if (!federate.get_subcommands().empty()) return;  // `command` is that one's
    if (arguments->model.empty()) throw CLI::RequiredError("MODEL");
    if (!arguments->has_prompt()) throw CLI::RequiredError("--prompt");
    command = [arguments] { return run_generate<vitrine::Federation>(*arguments); };
  });
}

}  // namespace cli
