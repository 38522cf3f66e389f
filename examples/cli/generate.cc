// SPDX-License-Identifier: Apache-2.0
// vitrine generate and vitrine federate: text from a prompt, streamed as it is made, with the
// recorder on.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "answer_output.h"
#include "candidates.h"
#include "chat_prompt.h"
#include "closing_note.h"
#include "constraint_options.h"
#include "failure_text.h"
#include "federate.h"
#include "hidden_states.h"
#include "length_options.h"
#include "log_options.h"
#include "prompt_options.h"
#include "sampling_options.h"
#include "stream_target.h"
#include "summary.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRingBytes = size_t{4} << 20;
constexpr int kLogitRows = 32;  // of a pass that scores the prompt

struct GenerateArguments {
  std::string model;
  PromptOptions prompt;
  LengthOptions lengths;  // without -c as many positions as the prompt and the new tokens need
  SamplingOptions sampling;
  ConstraintOptions constraint;
  LogOptions log;
  bool chat = false;
  ChatPromptOptions chat_prompt;
  bool attribution = false;
  int logprobs = 0;  // 0: none are printed
  int n_best = 1;
  bool json = false, json_lines = false, summary = false, prompt_logprobs = false,
       ignore_end_of_text = false;
  DeviceOptions device;
};

/// The federation file that MODEL is; none for `generate`.
template <typename Model>
std::optional<vitrine::FederationSpec> find_spec(const GenerateArguments& arguments) {
  if constexpr (std::is_same_v<Model, vitrine::Engine>) return std::nullopt;
  return load_federation_spec(arguments.model);
}

std::unique_ptr<vitrine::Engine> load_model(const vitrine::Engine*, const std::string& model,
                                            const std::optional<vitrine::FederationSpec>&,
                                            const vitrine::EngineOptions& options) {
  return vitrine::Engine::load(model, options);
}
std::unique_ptr<vitrine::Federation> load_model(const vitrine::Federation*, const std::string&,
                                                const std::optional<vitrine::FederationSpec>& spec,
                                                const vitrine::EngineOptions& options) {
  return vitrine::Federation::load(*spec, options);
}

[[noreturn]] void refuse_empty_prompt() {
  refuse(
      "the prompt is empty; expected text (-p TEXT, -f FILE, or -p - and text on standard input)");
}

template <typename Model>
int run_generate(GenerateArguments arguments) {
  const Clock::time_point started = Clock::now();
  arguments.sampling.resolve();
  if (arguments.device.strict) require_private_key("--seal", arguments.log.seal);
  const uint64_t seed = arguments.sampling.sampler.seed;
  std::vector<NamedPath> inputs = arguments.constraint.files();
  inputs.insert(inputs.end(), {{"MODEL", arguments.model},
                               {"--chat-template", arguments.chat_prompt.template_file},
                               {"--chat-variables", arguments.chat_prompt.variables}});
  if constexpr (std::is_same_v<Model, vitrine::Federation>) {
    const auto members = member_paths(vitrine::FederationSpec::load(arguments.model));
    inputs.insert(inputs.end(), members.begin(), members.end());
  }
  arguments.log.check(inputs);
  const std::pair<bool, const char*> of_tokens[] = {
      {arguments.attribution, "--attribution"},
      {arguments.prompt_logprobs, "--prompt-logprobs"},
      {arguments.log.text, "--audit-text"}};
  for (const auto& [is_given, name] : of_tokens) {
    if (!is_given || arguments.log.level != "counters") continue;
    refuse(
        fmt::format("{}: --audit-level counters keeps nothing of a single token; expected standard "
                    "or full",
                    name));
  }
  arguments.constraint.check();
  if (arguments.chat_prompt.is_given() && !arguments.chat) {
    refuse(
        "--system, --chat-template and --chat-variables are for a conversation; expected --chat");
  }
  if (arguments.json_lines && (arguments.json || arguments.summary)) {
    refuse("--json-lines, --json and --summary are different outputs; expected one of them");
  }
  const bool is_several = arguments.n_best > 1;
  if (is_several && (arguments.prompt_logprobs || arguments.summary)) {
    refuse("--prompt-logprobs and --summary are for one answer; expected --n-best 1");
  }
  vitrine::EngineOptions options = arguments.device.engine_options();
  options.keep_logits = is_several || arguments.logprobs > 0;
  if (is_several) options.max_sequences = 2;  // the prompt, and the answer that is made

  const std::optional<vitrine::FederationSpec> spec = find_spec<Model>(arguments);
  if (spec) spec->check_members();
  const std::string model = spec ? spec->specialists[0].model : arguments.model;
  const vitrine::Checkpoint checkpoint = open_model(model);
  const vitrine::ModelConfig config = vitrine::parse_model_config(checkpoint);
  const vitrine::Tokenizer tokenizer = open_tokenizer(checkpoint, config);
  arguments.sampling.resolve_tokens(tokenizer, config.vocab_size);
  arguments.sampling.note_explanation();
  std::string prompt_text = arguments.prompt.read();
  if (prompt_text.empty()) refuse_empty_prompt();
  std::vector<int32_t> stop_token_ids;
  if (arguments.chat) {
    const vitrine::ChatTemplate chat = open_chat_template(checkpoint, arguments.chat_prompt);
    std::vector<vitrine::ChatMessage> messages = arguments.chat_prompt.first_messages();
    messages.push_back({"user", prompt_text});
    prompt_text = arguments.chat_prompt.render(chat, messages);
    if (prompt_text.empty()) {
      refuse(
          "the chat template makes no text of this message; expected the template of a model that "
          "converses (--chat-template FILE)");
    }
    stop_token_ids = vitrine::end_of_turn_ids(tokenizer, chat);
  }
  // A template writes the tokens around a prompt itself.
  const std::vector<int32_t> prompt = tokenizer.encode(prompt_text, !arguments.chat);
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t limit = arguments.lengths.context_limit(
      config, model,
      arguments.lengths.is_endless() ? kDefaultContext : std::numeric_limits<int64_t>::max());
  if (prompt.empty()) refuse_empty_prompt();
  if (prompt_tokens > limit) {
    refuse(fmt::format(
        "the prompt has {} tokens and the context of {} holds {} ({}); expected a "
        "shorter prompt",
        prompt_tokens, model, limit,
        limit < config.max_position_embeddings ? "-c" : "config, max_position_embeddings"));
  }

  // What the grammar refuses fails before the weights are read.
  std::optional<vitrine::Grammar> grammar;
  std::unique_ptr<vitrine::Constraint> constraint;
  vitrine::GenerateOptions generation;
  if (arguments.constraint.is_given()) {
    std::vector<int32_t> end_ids = stop_token_ids;
    for (const int64_t id : config.eos_token_ids) end_ids.push_back(static_cast<int32_t>(id));
    grammar =
        arguments.constraint.compile(tokenizer, static_cast<int32_t>(config.vocab_size), end_ids,
                                     vitrine::banned_ids(arguments.sampling.sampler));
    arguments.constraint.apply(grammar, tokenizer, constraint, generation);
  }
  const auto ahead = ConstraintOptions::prepare(grammar);

  const vitrine::AuditMode mode = arguments.log.audit_mode();
  const int64_t context = std::min(limit, prompt_tokens + arguments.lengths.token_limit());
  options.max_context = static_cast<int>(context);
  options.max_step_tokens =
      static_cast<int>(std::min<int64_t>(prompt_tokens, arguments.lengths.step_tokens));
  if (arguments.prompt_logprobs) {
    options.max_logit_rows = std::min(options.max_step_tokens, kLogitRows);
  }
  arguments.constraint.reserve_steps(options);
  options.audit_mode = mode;
  options.attribution = arguments.attribution;
  if (!arguments.log.hidden_states.empty()) {
    options.hidden_state_layers =
        parse_hidden_layers(arguments.log.hidden_states,
                            static_cast<int>(spec ? num_layers_of(*spec) : config.num_layers));
  }
  options.audit_level = arguments.log.audit_level();
  // Destroyed last to first: the engine before the sinks, the log before what its callbacks use.
  Summary summary;
  std::unique_ptr<Log> log;
  std::unique_ptr<vitrine::SlabRing> ring;
  std::unique_ptr<StreamTarget> target;
  std::unique_ptr<vitrine::AuditStream> stream;
  std::optional<vitrine::TeeSink> both;
  const auto engine = load_model(static_cast<const Model*>(nullptr), model, spec, options);
  const double load_seconds = seconds_since(started);

  if (!arguments.log.stream.empty()) {
    target = std::make_unique<StreamTarget>(arguments.log.stream);
  }
  catch_interrupts();  // from here on there is something to finish
  const auto header = [&] {
    vitrine::LogHeader head =
        log_header(model, arguments.sampling, arguments.device, engine->summary(), checkpoint);
    head.constraint = arguments.constraint.description(arguments.log.hides_text());
    if (spec) add_members(*spec, head);
    return head;
  };
  vitrine::AuditSink* sink = nullptr;
  if (!arguments.log.path.empty()) {
    log = arguments.log.open(header(), prompt_tokens,
                             [&tokenizer](int32_t id) { return token_piece(tokenizer, id); });
    if (arguments.summary) {
      log->on_record([&summary](const vitrine::TokenRecord& record) { summary.add(record); });
    }
    sink = &log->sink();
  } else if (mode != vitrine::AuditMode::kNone) {
    // The summary needs the records of the whole run, any other run only the last ones.
    ring = std::make_unique<vitrine::SlabRing>(arguments.summary ? 16 * kRingBytes : kRingBytes,
                                               vitrine::SlabRing::WhenFull::kOverwrite);
    sink = ring.get();
  }
  if (target) {
    stream = open_stream(*target, header(), arguments.log);
    sink = &both.emplace(*sink, stream->sink());
  }
  if (sink != nullptr) engine->set_audit_sink(sink);

  generation.max_new_tokens = arguments.lengths.token_limit();
  generation.sampler = arguments.sampling.sampler;
  generation.stop_token_ids = stop_token_ids;
  generation.ignore_end_of_text = arguments.ignore_end_of_text;
  generation.prompt_logprobs = arguments.prompt_logprobs;
  if (options.keep_logits) generation.logprobs = arguments.logprobs;
  const auto beginning = constraint ? constraint->fork() : nullptr;
  std::optional<AnswerText> answer(std::in_place, tokenizer, arguments.sampling.stop,
                                   beginning.get());
  AnswerOutput output({.json = arguments.json,
                       .json_lines = arguments.json_lines,
                       .logprobs = arguments.logprobs,
                       .may_begin_anew = arguments.constraint.may_begin_anew()},
                      tokenizer);
  int32_t attempt = 0;
  const auto on_token = [&](const vitrine::TokenEvent& event) {
    if (event.attempt != attempt) {
      attempt = event.attempt;
      output.restart(attempt);
      answer.emplace(tokenizer, arguments.sampling.stop, beginning.get());
    }
    output.add(event, answer->add(event));
    return !answer->stopped() && interrupt_signal() == 0 && !output.is_lost();
  };
  const AnswerStart start{.model = arguments.model, .prompt_tokens = prompt_tokens, .seed = seed};
  std::vector<Candidate> candidates;
  vitrine::GenerateResult result;
  std::string reason(vitrine::stop_reason_name(vitrine::StopReason::kCancelled));
  if (is_several) {
    candidates = generate_candidates(*engine, prompt, generation, arguments.n_best, tokenizer,
                                     arguments.sampling.stop);
    if (!candidates.empty()) {
      result = candidates.front().result;
      result.constraint = {};
      for (const Candidate& candidate : candidates)
        result.constraint += candidate.result.constraint;
      reason = candidates.front().reason;
    }
    output.show(candidates, start);
  } else {
    output.start(start);
    result = vitrine::generate(*engine, prompt, generation, on_token);
    const std::string rest = answer->finish();
    if (answer->is_cut_whole()) result.is_complete = true;
    reason = answer->reason(result.reason);
    const std::string failure = unfinished(result);
    output.finish(rest, result, failure.empty());
    output.end(answer_end(result, output.text(), reason, failure));
  }
  engine->set_audit_sink(nullptr);
  const bool is_cancelled =
      interrupt_signal() != 0 &&
      (is_several || (result.reason == vitrine::StopReason::kCancelled && !answer->stopped()));
  if (log) log->finish(reason);
  if (stream) stream->finish(reason);
  output.rethrow_if_lost();

  // The prompt's pass makes the first token.
  const auto num_tokens = static_cast<int64_t>(result.tokens.size());
  const int64_t steps = std::max<int64_t>(0, num_tokens - 1);
  const double tokens_per_second =
      result.decode_seconds > 0 ? static_cast<double>(steps) / result.decode_seconds : 0;
  const std::string log_place = log ? arguments.log.path : "";
  if (arguments.json) {
    nlohmann::ordered_json json;
    json["text"] = output.text();
    json["tokens"] = result.tokens;
    json["reason"] = reason;
    json["prompt_tokens"] = result.prompt_tokens;
    json["seed"] = seed_json(seed);
    if (grammar) json["constraint"] = constraint_json(result);
    if (arguments.constraint.lenient) json["constraint"]["weakened"] = weakened_json(*grammar);
    if (arguments.chat) json["prompt"] = prompt_text;
    json["timings"] = {{"load_seconds", load_seconds},
                       {"prefill_seconds", result.prefill_seconds},
                       {"decode_seconds", result.decode_seconds}};
    json["tokens_per_second"] = tokens_per_second;
    if (arguments.sampling.explain) json["sampler"] = arguments.sampling.explanation();
    if (arguments.logprobs > 0) json["logprobs"] = logprobs_json(result.logprobs, tokenizer);
    if (is_several) json["candidates"] = candidates_json(candidates, tokenizer);
    json["audit"] = log ? nlohmann::ordered_json(log_place) : nlohmann::ordered_json(nullptr);
    write_json(json);
  }
  if (arguments.summary && !is_cancelled) {
    if (ring) {
      summary.set_overwritten(ring->overwritten());
      for (const vitrine::TokenRecord& record : ring->drain_records()) summary.add(record);
    }
    std::string table = fmt::format(
        "\nspeed       {:.0f} tokens/s ({} tokens, prompt of {} in {:.1f} ms)\n", tokens_per_second,
        result.tokens.size(), result.prompt_tokens, 1000 * result.prefill_seconds);
    table += "audit cost  " + measure_overhead(*engine, mode, prompt, context) + "\n";
    if (mode != vitrine::AuditMode::kNone) table += summary.text(engine->summary(), tokenizer);
    if (log) table += "log         " + log_place + "\n";
    write_out(table);
  }
  write_remark(fmt::format(
      "{}: {} after a prompt of {} in {:.1f} ms; seed {}; recorder {}{}{}{}", reason,
      token_speed(num_tokens, steps, result.decode_seconds), result.prompt_tokens,
      1000 * result.prefill_seconds, seed, arguments.log.mode, arguments.log.note(log.get()),
      stream_note(arguments.log.stream, stream.get()), constraint_note(result)));
  if (is_cancelled) return 128 + interrupt_signal();
  if (const std::string why = unfinished(result); !why.empty()) {
    write_note(why);
    write_failures(result.failures, tokenizer);
    return 1;
  }
  if (const std::string warning = squeezed(result); !warning.empty()) write_note(warning);
  return 0;
}

}  // namespace

namespace {

/// `is_required`: MODEL and the prompt must be there (a command with subcommands asks itself).
std::shared_ptr<GenerateArguments> add_options(CLI::App* generate, const char* model_help,
                                               bool is_required) {
  auto arguments = std::make_shared<GenerateArguments>();
  add_model(*generate, arguments->model, model_help)->required(is_required);
  arguments->prompt.add_to(*generate);
  arguments->lengths.add_to(*generate, "how many tokens at most",
                            "positions that the prompt and the new tokens may take (default: as "
                            "many as they need, with -n -1 at most " +
                                std::to_string(kDefaultContext) + ")");
  arguments->sampling.add_to(*generate, "default: a random one, which --json tells");
  generate->add_flag("--chat", arguments->chat,
                     "the prompt is a user's message: put it into the model's chat template, and "
                     "stop at the end of the turn");
  arguments->chat_prompt.add_to(*generate);
  arguments->constraint.add_to(*generate);
  arguments->log.add_to(*generate);
  generate->add_flag("--attribution", arguments->attribution,
                     "the log splits each token's logit into what every part of the model added");
  generate->add_flag("--prompt-logprobs", arguments->prompt_logprobs,
                     "record the log-probabilities of the prompt's tokens too");
  generate
      ->add_option("--logprobs", arguments->logprobs,
                   "so many most probable tokens beside each token, with log-probabilities")
      ->check(CLI::Range(1, 1000));
  generate
      ->add_option("--n-best", arguments->n_best,
                   "so many answers, the one of the highest log-probability first")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  generate->add_flag("--ignore-end-of-text", arguments->ignore_end_of_text,
                     "go on after an end-of-text token");
  generate->add_flag("--summary", arguments->summary, "end with a table of what the recorder saw");
  generate->add_flag("--json", arguments->json, "one JSON object instead of text");
  generate->add_flag(
      "--json-lines", arguments->json_lines,
      "one JSON object an event instead of text: where an answer starts, each token, "
      "where it ends");
  add_quiet(*generate);
  arguments->device.add_to(*generate);
  return arguments;
}

}  // namespace

void add_generate(CLI::App& app, Command& command) {
  CLI::App* generate = app.add_subcommand("generate", "Generates text from a prompt");
  const auto arguments = add_options(generate, "folder of the model, or a .gguf file", true);
  generate->callback([arguments, &command] {
    if (!arguments->prompt.is_given()) throw CLI::RequiredError("--prompt");
    command = [arguments] { return run_generate<vitrine::Engine>(*arguments); };
  });
}

void add_federated_generation(CLI::App& federate, Command& command) {
  const auto arguments = add_options(&federate, "the federation file", false);
  federate.callback([arguments, &command, &federate] {
    if (!federate.get_subcommands().empty()) return;  // `command` is that one's
    if (arguments->model.empty()) throw CLI::RequiredError("MODEL");
    if (!arguments->prompt.is_given()) throw CLI::RequiredError("--prompt");
    command = [arguments] { return run_generate<vitrine::Federation>(*arguments); };
  });
}

}  // namespace cli
