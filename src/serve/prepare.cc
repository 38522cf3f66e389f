// SPDX-License-Identifier: Apache-2.0
#include "serve/prepare.h"

#include <fnmatch.h>

#include <algorithm>

#include "serve/adapter_name.h"

namespace vitrine::serve {

namespace {

constexpr size_t kMaxTenants = 64;  // that have grammars of their own at once

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kInvalidArgument, message);
}

// The lines that match one of the patterns go behind the others.
std::string move_lines(const std::string& text, const std::vector<std::string>& patterns) {
  std::string stay, moved;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const bool moves = std::ranges::any_of(patterns, [&](const std::string& pattern) {
      return fnmatch(pattern.c_str(), line.c_str(), 0) == 0;
    });
    (moves ? moved : stay) += line + "\n";
    begin = end + 1;
  }
  std::string all = stay + moved;
  if (!text.ends_with('\n') && !all.empty()) all.pop_back();
  return all;
}

bool is_constrained_format(std::string_view format) {
  const std::vector<std::string> known = tool_call_formats();
  return std::ranges::find(known, format) != known.end();
}

}  // namespace

RequestPreparer::RequestPreparer(const Model& model, const ServerOptions& options)
    : model_(model), options_(options) {}

const TokenTable& RequestPreparer::table() {
  if (!table_) table_ = model_.token_table();
  return *table_;
}

const std::string& RequestPreparer::output_format() {
  if (output_format_.empty()) {
    output_format_ = find_chat_output_format(*model_.chat_template(), model_.tokenizer());
  }
  return output_format_;
}

const std::string& RequestPreparer::call_format() {
  if (call_format_.empty()) {
    call_format_ = find_tool_call_format(*model_.chat_template(), model_.tokenizer());
  }
  return call_format_;
}

// Tenants do not share masks: who measures time could learn what others ask for.
GrammarCache& RequestPreparer::grammars_of(const std::string& tenant) {
  const std::string& scope = options_.share_between_tenants ? std::string() : tenant;
  const auto found = grammars_.find(scope);
  if (found != grammars_.end()) return *found->second;
  if (grammars_.size() >= kMaxTenants) grammars_.clear();
  const size_t bytes = std::max<size_t>(options_.grammar_bytes / kMaxTenants, size_t{1} << 20);
  return *(grammars_[scope] = std::make_unique<GrammarCache>(bytes));
}

int RequestPreparer::adapter_index(const std::string& name) const {
  const std::vector<std::string>& folders = model_.options().adapters;
  const auto found = std::ranges::find(folders, name, adapter_name);
  return found == folders.end() ? -1 : static_cast<int>(found - folders.begin());
}

// What clients say is text, whatever it looks like: only what the model itself said may have been
// special tokens, which a template may look for.
std::vector<ChatMessage> RequestPreparer::guarded(std::vector<ChatMessage> messages) const {
  const Tokenizer& tokenizer = model_.tokenizer();
  for (ChatMessage& message : messages) {
    if (message.role == "assistant") continue;
    message.role = tokenizer.guard_special_tokens(message.role);
    message.content = tokenizer.guard_special_tokens(message.content);
    message.fields_json = tokenizer.guard_special_tokens(message.fields_json);
  }
  return messages;
}

std::vector<ChatMessage> RequestPreparer::stable_messages(const ServeRequest& request) const {
  std::vector<ChatMessage> messages = request.messages;
  for (const StableRoot& root : options_.stable_roots) {
    if (root.tenant != request.tenant) continue;
    for (ChatMessage& message : messages) {
      if (message.role == root.role) message.content = move_lines(message.content, root.lines);
    }
  }
  return messages;
}

std::string RequestPreparer::write_prompt(const ServeRequest& request,
                                          const std::vector<ChatMessage>& messages) const {
  const ChatTemplate* chat = model_.chat_template();
  if (chat == nullptr) {
    refuse(
        "request field 'messages' is a conversation, and the model has no chat template; expected "
        "'text', or ModelOptions::chat_template");
  }
  const Tokenizer& tokenizer = model_.tokenizer();
  ChatOptions options = request.chat;
  options.tools_json = tokenizer.guard_special_tokens(options.tools_json);
  options.variables_json = tokenizer.guard_special_tokens(options.variables_json);
  return render_with_calls(*chat, guarded(messages), options) +
         tokenizer.guard_special_tokens(request.answer_start);
}

std::optional<Grammar> RequestPreparer::compile(const ServeRequest& request,
                                                const std::string& prompt) {
  using Kind = ServeConstraint::Kind;
  const ServeConstraint& asked = request.constraint;
  GrammarCache& cache = grammars_of(request.tenant);
  GrammarOptions options;
  options.schema = asked.schema;
  switch (asked.kind) {
    case Kind::kJson: return cache.json(table(), asked.schema);
    case Kind::kJsonSchema: return cache.json_schema(table(), asked.text, asked.schema);
    case Kind::kRegex: return cache.regex(table(), asked.text, options);
    case Kind::kChoices: return cache.choices(table(), asked.choices, options);
    case Kind::kGrammar:
      return grammar_notation(asked.text) == GrammarNotation::kGbnf
                 ? cache.gbnf(table(), asked.text, options)
                 : cache.lark(table(), asked.text, options);
    case Kind::kTags: return cache.tags(table(), asked.text, options);
    case Kind::kNone:
    case Kind::kOwn: break;
  }
  const bool has_tools =
      asked.kind == Kind::kNone && !request.chat.tools_json.empty() && !request.messages.empty();
  if (!has_tools) return std::nullopt;
  const ChatTemplate& chat = *model_.chat_template();
  const std::string& format = call_format();
  const bool must_call = request.tool_choice.kind == ToolChoice::Kind::kRequired ||
                         request.tool_choice.kind == ToolChoice::Kind::kFunction;
  if (!must_call && !is_constrained_format(format)) return std::nullopt;
  const ChatTools tools = ChatTools::parse(request.chat.tools_json, "request field 'tools'");
  const ToolCallTags tags = tool_call_tags(format, tools, model_.tokenizer(),
                                           {.choice = request.tool_choice,
                                            .parallel = request.parallel_calls,
                                            .prompt = prompt,
                                            .template_source = chat.source()});
  return cache.tags(table().with(tags.marks), tags.json, options);
}

void RequestPreparer::hold_answer(const ServeRequest& request, const std::string& prompt,
                                  Job& job) {
  if (request.constraint.kind == ServeConstraint::Kind::kOwn) {
    if (!request.constraint.make) {
      refuse("request field 'constraint.make' is empty; expected a function that makes one");
    }
    job.constraint = request.constraint.make(table());
  } else if (const std::optional<Grammar> grammar = compile(request, prompt)) {
    job.constraint = grammar->start();
  }
}

RequestPreparer::Prompt RequestPreparer::make_prompt(const ServeRequest& request) const {
  const Tokenizer& tokenizer = model_.tokenizer();
  Prompt prompt;
  if (!request.messages.empty()) {
    std::string written = write_prompt(request, request.messages);
    const bool is_moved = std::ranges::find(options_.stable_roots, request.tenant,
                                            &StableRoot::tenant) != options_.stable_roots.end();
    if (is_moved) {
      const std::string given =
          std::exchange(written, write_prompt(request, stable_messages(request)));
      if (written != given) prompt.given_ids = tokenizer.encode_guarded(given, false);
    }
    // A template writes the tokens around a prompt itself.
    prompt.ids = tokenizer.encode_guarded(written, false);
    prompt.text = Tokenizer::without_guards(written);
  } else if (!request.text.empty()) {
    prompt.text = request.text;
    prompt.ids = tokenizer.encode(prompt.text, true);
  } else {
    prompt.ids = request.tokens;
  }
  if (prompt.ids.empty()) refuse("the prompt has no token; expected a text that is not empty");
  return prompt;
}

std::vector<int32_t> RequestPreparer::encode(const ServeRequest& request) const {
  return make_prompt(request).ids;
}

std::unique_ptr<Job> RequestPreparer::prepare(RequestState& state) {
  const ServeRequest& request = state.request;
  auto job = std::make_unique<Job>();
  const bool is_conversation = !request.messages.empty();
  Prompt made = make_prompt(request);
  const std::string& prompt = made.text;
  job->prompt = std::move(made.ids);
  state.given_prompt = std::move(made.given_ids);
  GenerateOptions& options = job->options;
  options.max_new_tokens = request.max_new_tokens;
  options.sampler = request.sampler;
  options.branch = request.branch;
  options.ignore_end_of_text = request.ignore_end_of_text;
  options.logprobs = request.logprobs;
  options.prompt_scores = request.prompt_logprobs;
  options.stop_token_ids = request.stop_token_ids;
  if (is_conversation) {
    const std::vector<int32_t>& ends = model_.end_of_turn_ids();
    options.stop_token_ids.insert(options.stop_token_ids.end(), ends.begin(), ends.end());
  }
  hold_answer(request, prompt, *job);
  if (job->constraint != nullptr) options.jump_forward = &model_.tokenizer();
  if (!options_.drafter.empty()) {
    job->drafter = make_drafter(options_.drafter);
    options.speculation.scope = request.tenant;
  }
  job->adapter = adapter_index(request.model);
  job->pins_prompt = request.pins_prompt;
  job->priority = request.priority;
  job->tenant = request.tenant;
  if (!options_.share_between_tenants) job->cache_scope = request.tenant;
  job->use_cache = request.use_cache && request.prompt_logprobs < 0;
  job->audit = request.audit;
  job->cancelled = &state.cancelled;
  state.tokenizer = &model_.tokenizer();
  state.prompt = job->prompt;
  state.form.stop = request.stop;
  if (is_conversation) {
    state.form.is_conversation = true;
    state.form.prompt = prompt;
    state.form.tools_json = request.chat.tools_json;
    state.form.format = request.chat.tools_json.empty() ? output_format() : call_format();
  }
  state.reader.emplace(*state.tokenizer, state.form);
  state.counts.prompt_tokens = std::ssize(job->prompt);
  return job;
}

}  // namespace vitrine::serve
