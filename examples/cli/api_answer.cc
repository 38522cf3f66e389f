// SPDX-License-Identifier: Apache-2.0
#include "api_answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "common.h"

namespace cli {

namespace {

constexpr size_t kMostLineBytes = size_t{4} << 20;
constexpr size_t kBytesBesideTokens = size_t{4} << 20, kBytesOfToken = size_t{16} << 10;
constexpr size_t kEventsBesideTokens = 4096, kEventsOfToken = 4;
constexpr size_t kMostCalls = 256;

[[noreturn]] void refuse_answer(const std::string& what) {
  throw vitrine::Error(vitrine::ErrorKind::kBadFile, what);
}

ApiJson parse_own(const std::string& text) { return ApiJson::parse(text); }

void add_constraint(const ApiServer& server, const vitrine::ServeRequest& request, ApiJson& body) {
  using Kind = vitrine::ServeConstraint::Kind;
  switch (request.constraint.kind) {
    case Kind::kNone: return;
    case Kind::kJson: body["response_format"] = {{"type", "json_object"}}; return;
    case Kind::kJsonSchema: {
      const ApiJson schema = parse_own(request.constraint.text);
      if (request.messages.empty() && server.maker == "llamacpp") {
        body["json_schema"] = schema;  // of completions, it knows no other name
        return;
      }
      body["response_format"] = {
          {"type", "json_schema"},
          {"json_schema", {{"name", "answer"}, {"strict", true}, {"schema", schema}}}};
      return;
    }
    default:
      throw vitrine::Error(vitrine::ErrorKind::kUnsupported,
                           "an answer is held to a grammar; OpenAI's interface has JSON schemas "
                           "and tools alone");
  }
}

void add_tools(const vitrine::ServeRequest& request, ApiJson& body) {
  using Kind = vitrine::ToolChoice::Kind;
  if (request.chat.tools_json.empty()) return;
  body["tools"] = parse_own(request.chat.tools_json);
  switch (request.tool_choice.kind) {
    case Kind::kAuto: break;
    case Kind::kNone: body["tool_choice"] = "none"; break;
    case Kind::kRequired: body["tool_choice"] = "required"; break;
    case Kind::kFunction:
      body["tool_choice"] = {{"type", "function"},
                             {"function", {{"name", request.tool_choice.function}}}};
      break;
  }
  if (!request.parallel_calls) body["parallel_tool_calls"] = false;
}

// Adds a message with what the assistant has said already, to be gone on with: in vLLM's words,
// which Vitrine takes too; llama-server goes on with whatever an assistant said last.
void add_start(const ApiServer& server, const vitrine::ServeRequest& request, ApiJson& body) {
  if (request.answer_start.empty()) return;
  if (server.maker != "llamacpp" && !server.tells_ids()) {
    throw vitrine::Error(vitrine::ErrorKind::kUnsupported,
                         "an answer's beginning is given, and OpenAI's interface has no word for "
                         "that; expected llama-server, vLLM or Vitrine");
  }
  body["messages"].push_back({{"role", "assistant"}, {"content", request.answer_start}});
  if (server.maker == "llamacpp") return;
  body["add_generation_prompt"] = false;
  body["continue_final_message"] = true;
}

void add_sampling(const ApiServer& server, const vitrine::ServeRequest& request, ApiJson& body) {
  body["temperature"] = request.sampler.temperature;
  body["seed"] = request.sampler.seed;
  body["max_tokens"] = request.max_new_tokens;
  if (!request.stop.empty()) body["stop"] = request.stop;
  if (request.sampler.temperature <= 0) return;
  body["top_p"] = request.sampler.top_p;
  if (server.maker != "llamacpp" && !server.tells_ids()) return;
  body["top_k"] = request.sampler.top_k;  // their own defaults cut tokens off
  body["min_p"] = request.sampler.min_p;
}

}  // namespace

ApiJson messages_json(const std::vector<vitrine::ChatMessage>& messages) {
  ApiJson list = ApiJson::array();
  for (const vitrine::ChatMessage& message : messages) {
    ApiJson one = message.fields_json.empty() ? ApiJson::object() : parse_own(message.fields_json);
    one["role"] = message.role;
    one["content"] = message.content;
    list.push_back(std::move(one));
  }
  return list;
}

std::string answer_body(const ApiServer& server, const vitrine::ServeRequest& request,
                        bool is_streamed) {
  ApiJson body = {{"model", server.model}, {"stream", is_streamed}};
  const bool is_chat = !request.messages.empty();
  if (is_chat) {
    body["messages"] = messages_json(request.messages);
    add_start(server, request, body);
    add_tools(request, body);
  } else {
    body["prompt"] = request.text;
  }
  add_constraint(server, request, body);
  add_sampling(server, request, body);
  if (is_streamed) body["stream_options"] = {{"include_usage", true}};
  if (server.has_logprobs && is_chat) {
    body["logprobs"] = true;
    if (server.maker == "llamacpp") body["top_logprobs"] = 1;  // it tells none without
  } else if (server.has_logprobs) {
    body["logprobs"] = server.is_vitrine() ? 0 : 1;
  }
  if (server.tells_ids()) body["return_token_ids"] = true;
  return body.dump(-1, ' ', false, ApiJson::error_handler_t::replace);
}

std::string prompt_hash(std::span<const int32_t> ids) {
  std::string bytes;
  bytes.reserve(4 * ids.size());
  for (const int32_t id : ids) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(static_cast<uint32_t>(id) >> (8 * i));
  }
  return vitrine::sha256_of_text(bytes);
}

AnswerReader::AnswerReader(std::string url, int most_tokens)
    : url_(std::move(url)),
      most_tokens_(most_tokens),
      most_bytes_(kBytesBesideTokens + kBytesOfToken * static_cast<size_t>(most_tokens)),
      most_events_(kEventsBesideTokens + kEventsOfToken * static_cast<size_t>(most_tokens)) {
  AnswerReader::begin();
}

void AnswerReader::begin() {
  begin_ = Clock::now();
  received_.clear();
  num_bytes_ = num_events_ = 0;
  is_stream_ = has_first_ = is_done_ = has_reason_ = false;
  calls_.clear();
  answer_ = {};
}

bool AnswerReader::take(std::string_view bytes) {
  num_bytes_ += bytes.size();
  if (num_bytes_ > most_bytes_) {
    refuse_answer(
        fmt::format("an answer of more than {} bytes; expected its end before", most_bytes_));
  }
  received_ += bytes;
  const bool was_stream = is_stream_;
  bool is_piece = false;
  size_t begin = 0;
  for (size_t end = received_.find('\n'); end != std::string::npos;
       end = received_.find('\n', begin)) {
    std::string_view line = std::string_view(received_).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool is_event = line.starts_with("data:") || line.starts_with(':') ||
                          line.starts_with("event:") || line.starts_with("id:");
    is_stream_ |= is_event;
    if (!is_stream_) break;  // one body, which may have lines
    begin = end + 1;
    is_piece |= take_line(line);
  }
  if (is_stream_) received_.erase(0, begin);
  if (received_.size() > kMostLineBytes) {
    refuse_answer(
        fmt::format("a line of more than {} bytes; expected shorter events", kMostLineBytes));
  }
  return is_piece || !(is_stream_ || was_stream);
}

bool AnswerReader::take_line(std::string_view line) {
  if (!line.starts_with("data:") || is_done_) return false;
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line.starts_with("[DONE]")) return is_done_ = true;
  if (++num_events_ > most_events_) {
    refuse_answer(
        fmt::format("an answer of more than {} events; expected its end before", most_events_));
  }
  return take_event(parse_reply(line, "an event"));
}

bool AnswerReader::take_event(const ApiJson& event) {
  if (const ApiJson* error = find_value(event, "error")) {
    const ApiJson* message = error->is_object() ? find_value(*error, "message") : error;
    answer_.stop = "error";
    answer_.error = fmt::format(
        "{}: the server says {}", url_,
        message != nullptr
            ? message->dump(-1, ' ', true, ApiJson::error_handler_t::replace).substr(0, 300)
            : "that it failed");
    is_done_ = true;
    return true;
  }
  take_counts(event);
  if (const ApiJson* ids = find_value(event, "prompt_token_ids")) {
    answer_.prompt_sha256 = prompt_hash(ids_of(*ids, "prompt_token_ids", "an event"));
  }
  const bool is_about_times = event.contains("usage") || event.contains("timings");
  if (is_about_times && find_value(event, "choices") == nullptr) return false;
  for (const ApiJson& choice : list_of(event, "choices", "an event")) {
    if (!choice.is_object()) refuse_reply("an event", "choices", &choice, "objects");
    if (count_of(choice, "index", "an event") == 0) take_choice(choice);
  }
  return true;
}

void AnswerReader::take_choice(const ApiJson& choice) {
  const std::string where = "an event";
  for (const char* name : {"delta", "message"}) {
    const ApiJson* delta = find_value(choice, name);
    if (delta == nullptr) continue;
    if (!delta->is_object()) refuse_reply(where, name, delta, "an object");
    take_delta(*delta);
  }
  if (const std::string text = text_of(choice, "text", where); !text.empty()) {
    see_piece();
    answer_.text += text;
  }
  if (const ApiJson* ids = find_value(choice, "token_ids")) {
    const std::vector<int32_t> more = ids_of(*ids, "token_ids", where);
    if (!more.empty()) see_piece();
    answer_.tokens.insert(answer_.tokens.end(), more.begin(), more.end());
  }
  if (const ApiJson* ids = find_value(choice, "prompt_token_ids")) {
    answer_.prompt_sha256 = prompt_hash(ids_of(*ids, "prompt_token_ids", where));
  }
  if (const ApiJson* logprobs = find_value(choice, "logprobs")) take_logprobs(*logprobs);
  const std::string reason = text_of(choice, "finish_reason", where);
  if (reason.empty()) return;
  has_reason_ = true;
  answer_.stop = reason == "length" ? "length" : "stop";
}

void AnswerReader::take_delta(const ApiJson& delta) {
  const std::string where = "an event";
  const std::string content = text_of(delta, "content", where);
  std::string reasoning = text_of(delta, "reasoning_content", where);
  if (reasoning.empty()) reasoning = text_of(delta, "reasoning", where);  // one text, two names
  if (!content.empty() || !reasoning.empty()) see_piece();
  answer_.parts.content += content;
  answer_.parts.reasoning += reasoning;
  if (find_value(delta, "tool_calls") == nullptr) return;
  const ApiJson& calls = list_of(delta, "tool_calls", where);
  for (size_t i = 0; i < calls.size(); ++i) take_call(calls[i], i);
}

void AnswerReader::take_call(const ApiJson& call, size_t place) {
  const std::string where = "an event";
  if (!call.is_object()) refuse_reply(where, "tool_calls", &call, "objects");
  const auto index = find_value(call, "index") == nullptr
                         ? place
                         : static_cast<size_t>(count_of(call, "index", where));
  if (index >= kMostCalls) refuse_reply(where, "tool_calls", &call, "at most 256 calls");
  see_piece();
  vitrine::ToolCall& made = calls_[index];
  made.id += text_of(call, "id", where);
  const ApiJson* function = find_value(call, "function");
  if (function == nullptr) return;
  if (!function->is_object()) refuse_reply(where, "function", function, "an object");
  made.name += text_of(*function, "name", where);
  if (const ApiJson* given = find_value(*function, "arguments"); given && given->is_object()) {
    made.arguments += given->dump();
  } else {
    made.arguments += text_of(*function, "arguments", where);
  }
}

void AnswerReader::take_logprobs(const ApiJson& logprobs) {
  const std::string where = "an event";
  if (!logprobs.is_object()) refuse_reply(where, "logprobs", &logprobs, "an object");
  if (find_value(logprobs, "content") != nullptr) {  // of conversations
    for (const ApiJson& one : list_of(logprobs, "content", where)) {
      const ApiJson* value = one.is_object() ? find_value(one, "logprob") : nullptr;
      if (value == nullptr) refuse_reply(where, "logprobs.content", &one, "a 'logprob' each");
      answer_.logprobs.push_back(logprob_value(*value, where));
    }
  } else if (find_value(logprobs, "token_logprobs") != nullptr) {
    for (const ApiJson& value : list_of(logprobs, "token_logprobs", where)) {
      answer_.logprobs.push_back(logprob_value(value, where));
    }
  }
}

void AnswerReader::take_counts(const ApiJson& event) {
  const std::string where = "an event";
  vitrine::ServeCounts& counts = answer_.counts;
  if (const ApiJson* usage = find_value(event, "usage")) {
    if (!usage->is_object()) refuse_reply(where, "usage", usage, "an object");
    counts.prompt_tokens = count_of(*usage, "prompt_tokens", where);
    counts.new_tokens = count_of(*usage, "completion_tokens", where);
    const ApiJson* details = find_value(*usage, "prompt_tokens_details");
    if (details != nullptr && details->is_object()) {
      counts.cached_tokens = count_of(*details, "cached_tokens", where);
    }
  }
  const ApiJson* timings = find_value(event, "timings");
  if (timings == nullptr || !timings->is_object()) return;
  const int64_t cached = count_of(*timings, "cache_n", where);
  if (counts.prompt_tokens == 0) {
    counts.prompt_tokens = cached + count_of(*timings, "prompt_n", where);
  }
  if (counts.new_tokens == 0) counts.new_tokens = count_of(*timings, "predicted_n", where);
  counts.cached_tokens = std::max(counts.cached_tokens, cached);
  const ApiJson* queue = find_value(*timings, "queue_ms");
  if (queue != nullptr && queue->is_number()) counts.queue_seconds = queue->get<double>() / 1e3;
}

void AnswerReader::see_piece() {
  if (has_first_) return;
  has_first_ = true;
  answer_.counts.first_token_seconds = seconds_since(begin_);
}

bool AnswerReader::end() {
  if (!is_stream_ && !received_.empty()) {
    take_event(parse_reply(received_, "the reply"));
    is_done_ = true;
  }
  if (!is_done_ && !has_reason_) return false;
  answer_.counts.total_seconds = seconds_since(begin_);
  return true;
}

vitrine::EvaluationTarget::Answer AnswerReader::answer() {
  vitrine::EvaluationTarget::Answer& answer = answer_;
  // A call that was cut short ends for the reason "tool_calls", too.
  const bool is_full = answer.counts.new_tokens >= most_tokens_ && !calls_.empty();
  if (answer.stop.empty() || is_full) answer.stop = is_full ? "length" : "stop";
  for (auto& [index, call] : calls_) answer.parts.tool_calls.push_back(std::move(call));
  if (answer.text.empty()) {  // a conversation: how the model wrote calls, a server does not say
    answer.text = answer.parts.content;
    for (const vitrine::ToolCall& call : answer.parts.tool_calls) {
      answer.text +=
          fmt::format("{}{{\"name\": {}, \"arguments\": {}}}", answer.text.empty() ? "" : "\n",
                      ApiJson(call.name).dump(), call.arguments.empty() ? "{}" : call.arguments);
    }
  }
  const bool fits = answer.tokens.empty() || answer.tokens.size() == answer.logprobs.size();
  if (!fits) answer.logprobs.clear();
  return std::move(answer);
}

}  // namespace cli
