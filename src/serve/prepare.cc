// SPDX-License-Identifier: Apache-2.0
#include "serve/prepare.h"

#include <algorithm>
#include <filesystem>

namespace vitrine::serve {

namespace {

constexpr size_t kMaxTenants = 64;  // that have grammars of their own at once

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kInvalidArgument, message);
}

std::string adapter_name(const std::string& folder) {
  const std::filesystem::path path(folder);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
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
  if (name.empty()) return -1;
  const std::vector<std::string>& folders = model_.options().adapters;
  std::string known;
  for (size_t i = 0; i < folders.size(); ++i) {
    if (adapter_name(folders[i]) == name) return static_cast<int>(i);
    known += (known.empty() ? "" : ", ") + adapter_name(folders[i]);
  }
  refuse("request field 'adapter' names '" + name + "'; expected " +
         (known.empty() ? "none, since the model was loaded without adapters" : "one of " + known));
}

std::string RequestPreparer::write_prompt(const ServeRequest& request) const {
  const ChatTemplate* chat = model_.chat_template();
  if (chat == nullptr) {
    refuse(
        "request field 'messages' is a conversation, and the model has no chat template; expected "
        "'text', or ModelOptions::chat_template");
  }
  return render_with_calls(*chat, request.messages, request.chat);
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
  const std::string format = find_tool_call_format(chat, model_.tokenizer());
  const bool must_call = request.tool_choice.kind == ToolChoice::Kind::kRequired ||
                         request.tool_choice.kind == ToolChoice::Kind::kFunction;
  if (!must_call && !is_constrained_format(format)) return std::nullopt;
  const ChatTools tools = ChatTools::parse(request.chat.tools_json, "request field 'tools'");
  const ToolCallTags tags = tool_call_tags(
      format, tools, model_.tokenizer(),
      {.choice = request.tool_choice, .prompt = prompt, .template_source = chat.source()});
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

std::unique_ptr<Job> RequestPreparer::prepare(RequestState& state) {
  const ServeRequest& request = state.request;
  auto job = std::make_unique<Job>();
  std::string prompt = request.text;
  const bool is_conversation = !request.messages.empty();
  if (is_conversation) prompt = write_prompt(request);
  // A template writes the tokens around a prompt itself.
  job->prompt =
      request.tokens.empty() ? model_.tokenizer().encode(prompt, !is_conversation) : request.tokens;
  if (job->prompt.empty()) refuse("the prompt has no token; expected a text that is not empty");
  GenerateOptions& options = job->options;
  options.max_new_tokens = request.max_new_tokens;
  options.sampler = request.sampler;
  options.branch = request.branch;
  options.ignore_end_of_text = request.ignore_end_of_text;
  options.logprobs = request.logprobs;
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
  job->adapter = adapter_index(request.adapter);
  job->priority = request.priority;
  job->tenant = request.tenant;
  if (!options_.share_between_tenants) job->cache_scope = request.tenant;
  job->use_cache = request.use_cache;
  job->audit = request.audit;
  job->cancelled = &state.cancelled;
  state.tokenizer = &model_.tokenizer();
  state.form.stop = request.stop;
  if (is_conversation) {
    state.form.is_conversation = true;
    state.form.prompt = prompt;
    state.form.tools_json = request.chat.tools_json;
    const ChatTemplate& chat = *model_.chat_template();
    state.form.format = request.chat.tools_json.empty()
                            ? find_chat_output_format(chat, model_.tokenizer())
                            : find_tool_call_format(chat, model_.tokenizer());
  }
  state.reader.emplace(*state.tokenizer, state.form);
  state.counts.prompt_tokens = std::ssize(job->prompt);
  return job;
}

}  // namespace vitrine::serve
