// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <limits>

#include "core/json_text.h"
#include "serve/openai_fields.h"
#include "vitrine/openai.h"

namespace vitrine {

namespace {

using nlohmann::json;
using serve::Fields;
using serve::refuse_field;

constexpr int64_t kMostTokens = 1 << 30;
constexpr int64_t kMostChoices = 128, kMostPrompts = 2048;
constexpr int64_t kMostLogprobs = 20;  // beside the token, as OpenAI has it
constexpr size_t kMostStops = 64;

[[noreturn]] void refuse_support(const std::string& field, const std::string& why) {
  throw Error(ErrorKind::kUnsupported, "'" + field + "' " + why);
}

// ---- What is said ----------------------------------------------------------------------------

std::string read_content(const json& content, const std::string& place) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse_field(place, content, "a text, or a list of parts");
  std::string text;
  for (const json& part : content) {
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const bool has_type = part.is_object() && part.contains("type") && part["type"].is_string();
    if (!has_type) refuse_field(place, part, "parts with a 'type'");
    const std::string type = part["type"];
    if (type != "text" && type != "input_text" && type != "output_text") {
      refuse_support(place, "has a part of type '" + type +
                                "'; expected text alone, since the model reads nothing else");
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      refuse_field(place, part, "a part with a 'text'");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<ChatMessage> read_messages(const json& messages) {
  if (!messages.is_array() || messages.empty()) {
    refuse_field("messages", messages, "a list of one message or more");
  }
  std::vector<ChatMessage> read;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string place = "messages[" + std::to_string(i) + "]";
    const json& one = messages[i];
    if (!one.is_object() || !one.contains("role") || !one["role"].is_string()) {
      refuse_field(place, one, "an object with a 'role'");
    }
    ChatMessage message;
    message.role = one["role"].get<std::string>();
    if (one.contains("content")) message.content = read_content(one["content"], place + ".content");
    json fields = one;
    fields.erase("role");
    fields.erase("content");
    if (!fields.empty()) message.fields_json = fields.dump();
    read.push_back(std::move(message));
  }
  return read;
}

// ---- What the answer is held to ----------------------------------------------------------------

void set_constraint(ServeConstraint& constraint, ServeConstraint::Kind kind, std::string text,
                    const char* field) {
  if (constraint.kind != ServeConstraint::Kind::kNone) {
    throw Error(ErrorKind::kInvalidArgument,
                "'" + std::string(field) +
                    "' comes beside another constraint; expected one of response_format, "
                    "structured_outputs, grammar and json_schema");
  }
  constraint.kind = kind;
  constraint.text = std::move(text);
}

// A schema as JSON, or as a text that holds it.
std::string schema_text(const json& schema, const char* field) {
  if (schema.is_string()) return schema.get<std::string>();
  if (!schema.is_object() && !schema.is_boolean()) {
    refuse_field(field, schema, "a JSON Schema, or a text that holds one");
  }
  return schema.dump();
}

void read_response_format(const json& format, ServeConstraint& constraint) {
  using Kind = ServeConstraint::Kind;
  constexpr const char* kField = "response_format";
  if (!format.is_object() || !format.contains("type") || !format["type"].is_string()) {
    refuse_field(kField, format, "an object with a 'type'");
  }
  const std::string type = format["type"];
  if (type == "text") return;
  if (type == "json_object") {  // llama-server takes a schema here, too
    if (format.contains("schema")) {
      return set_constraint(constraint, Kind::kJsonSchema, schema_text(format["schema"], kField),
                            kField);
    }
    return set_constraint(constraint, Kind::kJsonSchema, R"({"type":"object"})", kField);
  }
  if (type == "json_schema") {
    const auto named = format.find("json_schema");
    if (named == format.end() || !named->is_object() || !named->contains("schema")) {
      refuse_field("response_format.json_schema", format, "an object with a 'schema'");
    }
    return set_constraint(constraint, Kind::kJsonSchema, schema_text((*named)["schema"], kField),
                          kField);
  }
  if (type == "structural_tag") {
    return set_constraint(constraint, Kind::kTags, format.dump(), kField);
  }
  refuse_field("response_format.type", format["type"],
               "text, json_object, json_schema or structural_tag");
}

void read_structured_outputs(const json& outputs, ServeConstraint& constraint) {
  using Kind = ServeConstraint::Kind;
  constexpr const char* kField = "structured_outputs";
  if (!outputs.is_object()) refuse_field(kField, outputs, "an object");
  const Fields fields(outputs);
  std::string text;
  if (const json* schema = fields.find("json")) {
    set_constraint(constraint, Kind::kJsonSchema, schema_text(*schema, kField), kField);
  }
  if (fields.has("regex")) {
    fields.read("regex", text);
    set_constraint(constraint, Kind::kRegex, text, kField);
  }
  if (fields.has("choice")) {
    set_constraint(constraint, Kind::kChoices, "", kField);
    fields.read_texts("choice", constraint.choices, 4096);
  }
  if (fields.has("grammar")) {
    fields.read("grammar", text);
    set_constraint(constraint, Kind::kGrammar, text, kField);
  }
  bool is_object = false;
  fields.read("json_object", is_object);
  if (is_object) set_constraint(constraint, Kind::kJsonSchema, R"({"type":"object"})", kField);
  if (const json* tag = fields.find("structural_tag")) {
    set_constraint(constraint, Kind::kTags, schema_text(*tag, kField), kField);
  }
}

void read_constraint(const Fields& fields, ServeConstraint& constraint) {
  if (const json* format = fields.find("response_format")) {
    read_response_format(*format, constraint);
  }
  if (const json* outputs = fields.find("structured_outputs")) {
    read_structured_outputs(*outputs, constraint);
  }
  if (fields.has("grammar")) {
    std::string text;
    fields.read("grammar", text);
    if (!text.empty()) {
      set_constraint(constraint, ServeConstraint::Kind::kGrammar, text, "grammar");
    }
  }
  if (const json* schema = fields.find("json_schema")) {
    set_constraint(constraint, ServeConstraint::Kind::kJsonSchema,
                   schema_text(*schema, "json_schema"), "json_schema");
  }
}

void read_tools(const Fields& fields, ServeRequest& request) {
  if (const json* tools = fields.find("tools"); tools != nullptr && !tools->empty()) {
    request.chat.tools_json = tools->dump();
    ChatTools::parse(request.chat.tools_json, "'tools'");
  }
  fields.read("parallel_tool_calls", request.parallel_calls);
  const json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  try {
    request.tool_choice =
        ToolChoice::parse(choice->is_string() ? choice->get<std::string>() : choice->dump());
  } catch (const Error& error) {
    refuse_field("tool_choice", *choice, "none, auto, required, or a function");
  }
  const bool must_call = request.tool_choice.kind == ToolChoice::Kind::kRequired ||
                         request.tool_choice.kind == ToolChoice::Kind::kFunction;
  if (must_call && request.chat.tools_json.empty()) {
    refuse_field("tool_choice", *choice, "'tools' beside it");
  }
}

// vLLM's "continue_final_message": the answer goes on behind what the last message says.
void take_start(const Fields& fields, ServeRequest& request) {
  bool goes_on = false;
  fields.read("continue_final_message", goes_on);
  if (!goes_on) return;
  const ChatMessage& last = request.messages.back();
  if (last.role != "assistant" || request.messages.size() < 2) {
    refuse_field("continue_final_message", true, "a message of the assistant's at the end");
  }
  request.answer_start = last.content;
  request.messages.pop_back();
}

// ---- How tokens are chosen
// -----------------------------------------------------------------------

void read_logit_bias(const json& bias, SamplerOptions& sampler) {
  constexpr const char* kExpected = "an object of token ids and numbers from -100 to 100";
  if (!bias.is_object()) refuse_field("logit_bias", bias, kExpected);
  for (const auto& [key, value] : bias.items()) {
    int32_t id = 0;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (problem != std::errc() || end != key.data() + key.size() || !value.is_number() ||
        !(value.get<double>() >= -100 && value.get<double>() <= 100)) {
      refuse_field("logit_bias", bias, kExpected);
    }
    // OpenAI: -100 bans a token.
    const float added =
        value.get<double>() <= -100 ? -std::numeric_limits<float>::infinity() : value.get<float>();
    sampler.logit_bias.emplace_back(id, added);
  }
}

void read_sampling(const Fields& fields, SamplerOptions& sampler) {
  fields.read("temperature", sampler.temperature, 0, 100);
  fields.read("top_p", sampler.top_p, 0, 1);
  if (sampler.top_p == 0) {  // clients mean the best token
    sampler.top_p = 1;
    sampler.top_k = 1;
  }
  fields.read("top_k", sampler.top_k, -1, std::numeric_limits<int32_t>::max());
  sampler.top_k = std::max(sampler.top_k, 0);
  fields.read("min_p", sampler.min_p, 0, 1);
  fields.read("typical_p", sampler.typical_p, 0.001, 1);
  fields.read("top_n_sigma", sampler.top_n_sigma, -1, 100);
  sampler.top_n_sigma = std::max(sampler.top_n_sigma, 0.0F);
  fields.read("xtc_probability", sampler.xtc_probability, 0, 1);
  fields.read("xtc_threshold", sampler.xtc_threshold, 0, 1);
  fields.read("repetition_penalty", sampler.repetition_penalty, 0.01, 100);
  fields.read("repeat_penalty", sampler.repetition_penalty, 0.01, 100);
  fields.read("frequency_penalty", sampler.frequency_penalty, -2, 2);
  fields.read("presence_penalty", sampler.presence_penalty, -2, 2);
  fields.read("dry_multiplier", sampler.dry_multiplier, 0, 100);
  fields.read("dry_base", sampler.dry_base, 1, 100);
  fields.read("dry_allowed_length", sampler.dry_allowed_length, 1, 1 << 20);
  fields.read_seed("seed", sampler.seed);
  if (const json* bias = fields.find("logit_bias")) read_logit_bias(*bias, sampler);
}

void read_logprobs(OpenAiRoute route, const Fields& fields, ServeRequest& request) {
  if (route == OpenAiRoute::kCompletions) {
    fields.read("logprobs", request.logprobs, 0, kMostLogprobs);
    return;
  }
  bool asks = false;
  fields.read("logprobs", asks);
  if (asks) request.logprobs = 0;
  if (!fields.has("top_logprobs")) return;
  int best = 0;
  fields.read("top_logprobs", best, 0, kMostLogprobs);
  if (!asks && best > 0) {
    refuse_field("top_logprobs", *fields.find("top_logprobs"), "'logprobs': true beside it");
  }
  if (asks) request.logprobs = best;
}

// What is echoed has the log-probabilities of what is generated.
void read_prompt_logprobs(const Fields& fields, OpenAiRequest& read, ServeRequest& request) {
  if (read.is_echoed) request.prompt_logprobs = request.logprobs;
  if (!fields.has("prompt_logprobs")) return;
  int best = 0;
  fields.read("prompt_logprobs", best, 0, kMostLogprobs);
  if (read.is_streamed) {
    refuse_field("prompt_logprobs", best, "none beside 'stream': true");
  }
  read.has_prompt_logprobs = true;
  request.prompt_logprobs = std::max(request.prompt_logprobs, best);
}

// ---- Prompts
// -------------------------------------------------------------------------------------

ServeRequest text_prompt(const json& prompt) {
  ServeRequest request;
  if (prompt.is_string()) {
    request.text = prompt.get<std::string>();
    if (request.text.empty()) refuse_field("prompt", prompt, "a text that is not empty");
    return request;
  }
  if (!prompt.is_array() || prompt.empty()) {
    refuse_field("prompt", prompt, "a text, ids, or a list of either");
  }
  for (const json& id : prompt) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      refuse_field("prompt", id, "ids of tokens, 0 or more");
    }
    request.tokens.push_back(id.get<int32_t>());
  }
  return request;
}

std::vector<ServeRequest> read_prompts(OpenAiRoute route, const Fields& fields, const json& body) {
  if (route == OpenAiRoute::kChatCompletions) {
    const json* messages = fields.find("messages");
    if (messages == nullptr) refuse_field("messages", nullptr, "a list of messages");
    ServeRequest request;
    request.messages = read_messages(*messages);
    read_tools(fields, request);
    take_start(fields, request);
    if (const json* variables = fields.find("chat_template_kwargs")) {
      if (!variables->is_object()) refuse_field("chat_template_kwargs", *variables, "an object");
      for (const char* taken : {"messages", "tools", "tokenize", "chat_template"}) {
        if (!variables->contains(taken)) continue;
        refuse_field("chat_template_kwargs." + std::string(taken), (*variables)[taken],
                     "variables of the template's own");
      }
      request.chat.variables_json = variables->dump();
    }
    return {request};
  }
  const json* prompt = fields.find("prompt");
  if (prompt == nullptr) refuse_field("prompt", nullptr, "a text, ids, or a list of either");
  const bool is_list =
      prompt->is_array() && !prompt->empty() && !prompt->front().is_number_integer();
  if (!is_list) return {text_prompt(*prompt)};
  if (std::ssize(*prompt) > kMostPrompts) {
    refuse_field("prompt", body, "at most " + std::to_string(kMostPrompts) + " prompts");
  }
  std::vector<ServeRequest> requests;
  for (const json& one : *prompt) requests.push_back(text_prompt(one));
  return requests;
}

int read_limit(OpenAiRoute route, const Fields& fields, int standard) {
  int limit = standard;
  fields.read("max_tokens", limit, 0, kMostTokens);
  if (route == OpenAiRoute::kChatCompletions) {
    fields.read("max_completion_tokens", limit, 0, kMostTokens);
  }
  fields.read("n_predict", limit, -1, kMostTokens);
  return limit < 0 ? standard : limit;
}

}  // namespace

OpenAiRequest read_openai_request(OpenAiRoute route, std::string_view body, int64_t most_answers) {
  const json parsed = parse_json_object(body, "the body");
  const Fields fields(parsed);
  OpenAiRequest read;
  read.route = route;
  fields.read("model", read.model);
  fields.read("stream", read.is_streamed);
  if (const json* options = fields.find("stream_options")) {
    if (!read.is_streamed || !options->is_object()) {
      refuse_field("stream_options", *options, "an object, beside 'stream': true");
    }
    Fields(*options).read("include_usage", read.has_usage);
  }
  if (route == OpenAiRoute::kCompletions) fields.read("echo", read.is_echoed);
  fields.read("return_token_ids", read.has_token_ids);
  fields.read("return_routed_experts", read.has_routed_experts);
  fields.read("account", read.has_account);
  read.has_seed = fields.has("seed");
  fields.read("n", read.choices, 1, kMostChoices);
  // OpenAI gives a completion 16 tokens and a chat as many as there are.
  constexpr int kCompletion = 16, kChat = 1 << 20;
  const int limit =
      read_limit(route, fields, route == OpenAiRoute::kCompletions ? kCompletion : kChat);
  std::vector<ServeRequest> prompts = read_prompts(route, fields, parsed);
  if (std::ssize(prompts) * read.choices > most_answers) {
    refuse_field("n", read.choices,
                 "at most " + std::to_string(most_answers) + " answers to all prompts together");
  }
  for (ServeRequest& request : prompts) {
    request.max_new_tokens = limit;
    read_sampling(fields, request.sampler);
    read_logprobs(route, fields, request);
    read_prompt_logprobs(fields, read, request);
    request.tells_prompt = read.has_token_ids;
    read_constraint(fields, request.constraint);
    fields.read_texts("stop", request.stop, kMostStops);
    fields.read("ignore_eos", request.ignore_end_of_text);
    fields.read("priority", request.priority, -1000000, 1000000);
    fields.read("cache_prompt", request.use_cache);
    if (const json* ids = fields.find("stop_token_ids")) {
      if (!ids->is_array()) refuse_field("stop_token_ids", *ids, "a list of ids");
      for (const json& id : *ids) {
        if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
          refuse_field("stop_token_ids", *ids, "a list of ids");
        }
        request.stop_token_ids.push_back(id.get<int32_t>());
      }
    }
    for (int choice = 0; choice < read.choices; ++choice) {
      request.branch = static_cast<uint32_t>(choice);
      read.requests.push_back(request);
    }
  }
  return read;
}

}  // namespace vitrine
