// SPDX-License-Identifier: Apache-2.0
#include "generate_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "closing_note.h"
#include "hidden_states.h"
#include "lora_options.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr int kLogitRows = 32;  // of a pass that scores the prompt

[[noreturn]] void refuse_empty_prompt() {
  refuse(
      "the prompt is empty; expected text (-p TEXT, -f FILE, or -p - and text on standard input)");
}

[[noreturn]] void refuse_outside_chat() {
  refuse(
      "--system, --chat-template, --chat-variables and --answer-format are for a conversation; "
      "expected --chat");
}

/// What is for one answer, where there are several prompts.
void refuse_options_of_one(const GenerateArguments& arguments) {
  const std::vector<std::string>& redacted = arguments.log.redact;
  const std::pair<bool, const char*> of_one[] = {
      {arguments.json, "--json"},
      {arguments.json_lines, "--json-lines"},
      {arguments.summary, "--summary"},
      {arguments.prompt_logprobs, "--prompt-logprobs"},
      {arguments.is_several(), "--n-best"},
      {arguments.lengths.keep < 0, "--keep -1"},
      {std::ranges::find(redacted, "prompt") != redacted.end(), "--redact prompt"}};
  for (const auto& [is_given, name] : of_one) {
    if (!is_given) continue;
    refuse(fmt::format(
        "{} is for one prompt; several are answered with a line of JSON each, without it", name));
  }
}

void refuse_counters_of_tokens(const GenerateArguments& arguments) {
  if (arguments.log.level != "counters") return;
  const std::pair<bool, const char*> of_tokens[] = {
      {arguments.attribution, "--attribution"},
      {arguments.expert_norms, "--expert-norms"},
      {arguments.prompt_logprobs, "--prompt-logprobs"},
      {arguments.log.text, "--audit-text"}};
  for (const auto& [is_given, name] : of_tokens) {
    if (!is_given) continue;
    refuse(
        fmt::format("{}: --audit-level counters keeps nothing of a single token; expected standard "
                    "or full",
                    name));
  }
}

std::string model_of(const std::optional<vitrine::FederationSpec>& spec, const std::string& given) {
  if (!spec) return given;
  spec->check_members();
  return spec->specialists[0].model;
}

}  // namespace

void GenerateArguments::add_to(CLI::App& command, const char* model_help, bool is_required) {
  add_model(command, model, model_help)->required(is_required);
  prompt.add_to(command);
  prompt_file.add_to(command);
  lengths.add_to(command, "how many tokens at most",
                 "positions that the prompt and the new tokens may take (default: as "
                 "many as they need, with -n -1 at most " +
                     std::to_string(kDefaultContext) + ")");
  sampling.add_to(command, "default: a random one, which --json tells");
  command.add_flag("--chat", chat,
                   "the prompt is a user's message: put it into the model's chat template, and "
                   "stop at the end of the turn");
  chat_prompt.add_to(command);
  constraint.add_to(command);
  speculation.add_to(command);
  log.add_to(command);
  command.add_flag("--attribution", attribution,
                   "the log splits each token's logit into what every part of the model added");
  command.add_flag("--expert-norms", expert_norms,
                   "the log has the norm of what each routed expert gave to a token");
  command.add_flag("--prompt-logprobs", prompt_logprobs,
                   "record the log-probabilities of the prompt's tokens too");
  command
      .add_option("--logprobs", logprobs,
                  "so many most probable tokens beside each token, with log-probabilities")
      ->check(CLI::Range(1, 1000));
  command
      .add_option("--n-best", n_best,
                  "so many answers, the one of the highest log-probability first")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_flag("--ignore-end-of-text", ignore_end_of_text, "go on after an end-of-text token");
  command.add_flag("--summary", summary, "end with a table of what the recorder saw");
  command.add_flag("--json", json, "one JSON object instead of text");
  command.add_flag("--json-lines", json_lines,
                   "one JSON object an event instead of text: where an answer starts, each token, "
                   "where it ends");
  add_quiet(command);
  if (is_required) add_lora(command, device.lora);  // a federation names its own
  device.add_to(command);
}

std::vector<NamedPath> GenerateArguments::inputs() const {
  std::vector<NamedPath> inputs = constraint.files();
  inputs.insert(inputs.end(), {prompt.input(),
                               prompt_file.input(),
                               {"MODEL", model},
                               {"--chat-template", chat_prompt.template_file},
                               {"--system-file", chat_prompt.system_file},
                               {"--chat-variables", chat_prompt.variables}});
  for (const auto& [path, scale] : lora_parts(device.lora)) inputs.emplace_back("--lora", path);
  return inputs;
}

void GenerateArguments::check(const std::function<std::vector<NamedPath>()>& members) {
  sampling.resolve();
  if (device.strict) require_private_key("--seal", log.seal);
  std::vector<NamedPath> all = inputs();
  refuse_shared_input(all);
  prompt_file.note_idle();
  const std::vector<NamedPath> of_members = members();
  all.insert(all.end(), of_members.begin(), of_members.end());
  log.check(all);
  refuse_counters_of_tokens(*this);
  constraint.check();
  if (constraint.tools.is_given()) {
    if (is_several()) refuse("--tools are called in one answer; expected --n-best 1");
    chat_prompt.given_tools = constraint.tools.read().json();
  }
  speculation.check();
  lengths.check({{constraint.is_given(), "a constraint"},
                 {constraint.tools.is_given(), "--tools"},
                 {speculation.is_given(), "--speculate"},
                 {is_several(), "--n-best"}});
  if (is_several() && !chat_prompt.format.empty()) {
    refuse("--answer-format takes one answer apart; expected it without --n-best");
  }
  if (chat_prompt.is_given() && !chat && !prompt_file.is_given()) refuse_outside_chat();
  if (prompt_file.is_given() && prompt.is_given()) {
    refuse(fmt::format("{} and {} are both prompts; expected one of them",
                       prompt_file.input().first, prompt.file ? "--file" : "--prompt"));
  }
  if (json_lines && (json || summary)) {
    refuse("--json-lines, --json and --summary are different outputs; expected one of them");
  }
  if (is_several() && (prompt_logprobs || summary)) {
    refuse("--prompt-logprobs and --summary are for one answer; expected --n-best 1");
  }
}

vitrine::EngineOptions GenerateArguments::engine_options() const {
  vitrine::EngineOptions options = device.engine_options();
  options.keep_logits = is_several() || logprobs > 0;
  if (is_several()) options.max_sequences = 2;  // the prompt, and the answer that is made
  options.audit_mode = log.audit_mode();
  options.audit_level = log.audit_level();
  options.attribution = attribution;
  options.expert_norms = expert_norms;
  return options;
}

GenerateRequest::GenerateRequest(GenerateArguments& arguments, vitrine::EngineOptions options,
                                 std::optional<vitrine::FederationSpec> given_spec)
    : spec(std::move(given_spec)),
      model(model_of(spec, arguments.model)),
      checkpoint(open_model(model)),
      config(vitrine::read_model_facts(checkpoint)),
      tokenizer(vitrine::open_tokenizer(checkpoint, config)),
      engine(std::move(options)) {
  arguments.sampling.take_defaults(checkpoint);
  arguments.sampling.resolve_tokens(tokenizer, config.vocab_size);
  arguments.sampling.note_explanation();
  read_prompts(arguments);
  generation.max_new_tokens = arguments.lengths.token_limit();
  generation.sampler = arguments.sampling.sampler;
  generation.ignore_end_of_text = arguments.ignore_end_of_text;
  generation.prompt_logprobs = arguments.prompt_logprobs;
  if (engine.keep_logits) generation.logprobs = arguments.logprobs;
  compile_constraint(arguments);
  size_engine(arguments);
}

void GenerateRequest::read_prompts(const GenerateArguments& arguments) {
  const PromptFileOptions& file = arguments.prompt_file;
  std::vector<GivenPrompt> given;
  if (file.is_given()) {
    given = file.read();
  } else {
    given.emplace_back().text = arguments.prompt.read();
    if (given[0].text.empty()) refuse_empty_prompt();
  }
  is_batch = !file.prompts.empty() || given.size() > 1;
  if (is_batch) refuse_options_of_one(arguments);
  for (GivenPrompt& one : given) {
    if (arguments.chat && !one.is_conversation()) one.messages.push_back({"user", one.text});
    if (one.is_conversation() == given[0].is_conversation()) continue;
    refuse(fmt::format(
        "{}a prompt beside conversations; expected either, or --chat, by which a prompt "
        "is a user's message",
        one.place));
  }
  is_conversation = given[0].is_conversation();
  if (!is_conversation && arguments.chat_prompt.is_given()) refuse_outside_chat();
  if (!is_conversation && arguments.constraint.tools.is_given()) {
    refuse("--tools are for a conversation; expected --chat or --messages");
  }
  make_prompts(arguments, given);
}

void GenerateRequest::make_prompts(const GenerateArguments& arguments,
                                   const std::vector<GivenPrompt>& given) {
  std::optional<vitrine::ChatTemplate> chat;
  std::optional<ToolCalling> calling;
  if (is_conversation) {
    chat.emplace(open_chat_template(checkpoint, arguments.chat_prompt));
    generation.stop_token_ids = vitrine::end_of_turn_ids(tokenizer, *chat);
  }
  if (const ToolOptions& tools = arguments.constraint.tools; tools.is_given()) {
    calling.emplace(tools, *chat, tokenizer, arguments.chat_prompt.format);
  }
  for (const GivenPrompt& one : given) {
    PreparedPrompt& made = prompts.emplace_back();
    made.id = one.id;
    made.text = one.text;
    if (chat) {
      const ChatPromptOptions options = arguments.chat_prompt.with_tools(one.tools_json, one.place);
      made.text = options.render(*chat, options.with_system(one.messages, one.place));
      if (made.text.empty()) {
        refuse(one.place +
               "the chat template makes no text of this message; expected the template of a model "
               "that converses (--chat-template FILE)");
      }
      if (!arguments.is_several()) {
        made.format =
            options.answer_format(*chat, tokenizer, made.text, arguments.constraint.is_given());
      }
      if (calling) prepare_calls(arguments, *calling, options, one);
    }
    // A template writes the tokens around a prompt itself.
    made.ids = tokenizer.encode(made.text, !chat);
    const int64_t limit = check_prompt(arguments, made, one.place);
    context =
        std::max(context, std::min(limit, std::ssize(made.ids) + arguments.lengths.token_limit()));
  }
}

/// Prepares the calls of tools for the prompt that was made last.
void GenerateRequest::prepare_calls(const GenerateArguments& arguments, const ToolCalling& calling,
                                    const ChatPromptOptions& options, const GivenPrompt& given) {
  vitrine::ToolCallTags tags = calling.tags(prompts.back().text);
  prompts.back().format.name = calling.format();
  if (!calls) {
    calling.warn_if_untold(arguments.model, options.with_system(given.messages, given.place),
                           options.chat_options());
    calls = std::move(tags);
  } else if (calls->json != tags.json) {
    refuse(given.place +
           "the prompt ends within reasoning and another does not, or the other way round; "
           "expected prompts with --tools that begin answers alike");
  }
}

/// Returns how many positions there are at most.
int64_t GenerateRequest::check_prompt(const GenerateArguments& arguments,
                                      const PreparedPrompt& prompt,
                                      const std::string& place) const {
  const int64_t limit = arguments.lengths.context_limit(
      config, model,
      arguments.lengths.is_endless() ? kDefaultContext : std::numeric_limits<int64_t>::max());
  if (prompt.ids.empty()) refuse_empty_prompt();
  if (std::ssize(prompt.ids) > limit) {
    refuse(fmt::format(
        "{}the prompt has {} tokens and the context of {} holds {} ({}); expected a "
        "shorter prompt",
        place, prompt.ids.size(), model, limit,
        limit < config.max_position_embeddings ? "-c" : "config, max_position_embeddings"));
  }
  return limit;
}

int64_t GenerateRequest::prompt_tokens() const {
  size_t most = 0;
  for (const PreparedPrompt& prompt : prompts) most = std::max(most, prompt.ids.size());
  return static_cast<int64_t>(most);
}

void GenerateRequest::compile_constraint(const GenerateArguments& arguments) {
  if (arguments.constraint.is_given()) {
    std::vector<int32_t> end_ids = generation.stop_token_ids;
    for (const int64_t id : config.eos_token_ids) end_ids.push_back(static_cast<int32_t>(id));
    grammar =
        arguments.constraint.compile(tokenizer, static_cast<int32_t>(config.vocab_size), end_ids,
                                     vitrine::banned_ids(arguments.sampling.sampler), calls);
    arguments.constraint.apply(grammar, tokenizer, constraint, generation);
  }
  ahead_ = ConstraintOptions::prepare(grammar);
}

void GenerateRequest::size_engine(const GenerateArguments& arguments) {
  generation.context_shift = arguments.lengths.context_shift;
  if (generation.context_shift) {
    generation.context_keep = arguments.lengths.kept(prompt_tokens(), context);
  }
  engine.max_context = static_cast<int>(context);
  engine.max_step_tokens =
      static_cast<int>(std::min<int64_t>(prompt_tokens(), arguments.lengths.step_tokens));
  if (arguments.prompt_logprobs) {
    engine.max_logit_rows = std::min(engine.max_step_tokens, kLogitRows);
  }
  arguments.constraint.reserve_steps(engine);
  const int for_one = engine.max_sequences;
  drafter = arguments.speculation.reserve_steps(spec ? std::string() : model, engine);
  if (is_batch) {
    // Each has the room that it has alone, but for prompts, which share a step.
    const auto count = static_cast<int>(
        std::min<size_t>(prompts.size(), static_cast<size_t>(arguments.prompt_file.parallel)));
    const int rows = std::max(engine.max_logit_rows, 1);
    const int of_branches = engine.max_sequences - for_one;
    engine.max_sequences = count * (1 + of_branches);
    engine.max_logit_rows = count * rows;
    engine.max_step_tokens = std::max(arguments.lengths.step_tokens, count * rows);
  }
  if (arguments.log.hidden_states.empty()) return;
  engine.hidden_state_layers =
      parse_hidden_layers(arguments.log.hidden_states,
                          static_cast<int>(spec ? num_layers_of(*spec) : config.num_layers));
}

}  // namespace cli
