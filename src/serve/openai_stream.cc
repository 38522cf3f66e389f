// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "serve/openai_parts.h"
#include "vitrine/openai.h"

namespace vitrine {

using serve::OrderedJson;

struct OpenAiStream::Impl {
  OpenAiRequest request;
  const Tokenizer& tokenizer;
  std::string model, id;
  int64_t created;
  serve::OpenAiUsage usage{request.choices};
  /// How far an answer is.
  struct Choice {
    bool has_begun = false;
    serve::TextLogprobs lists;
    OrderedJson fields = OrderedJson::object();  // of the next chunk
  };
  std::vector<Choice> choices = std::vector<Choice>(
      request.requests.size(), {false, serve::TextLogprobs(tokenizer), OrderedJson::object()});

  bool is_chat() const { return request.route == OpenAiRoute::kChatCompletions; }

  OrderedJson chunk() const {
    return {{"id", id},
            {"object", is_chat() ? "chat.completion.chunk" : "text_completion"},
            {"created", created},
            {"model", model},
            {"choices", OrderedJson::array()}};
  }

  std::string with_choice(OrderedJson choice) {
    OrderedJson& fields = choices[choice["index"].get<size_t>()].fields;
    choice.update(std::exchange(fields, OrderedJson::object()));
    OrderedJson all = chunk();
    all["choices"].push_back(std::move(choice));
    return serve::dump_openai(all);
  }

  OrderedJson logprobs(size_t index, const ServeEvent& event) {
    if (!event.logprobs) return nullptr;
    if (is_chat()) return serve::chat_logprobs(tokenizer, {&*event.logprobs, 1});
    choices[index].lists.add(*event.logprobs);
    return choices[index].lists.take();
  }

  OrderedJson delta_json(const ChatDelta& delta, size_t index) const {
    const auto call = static_cast<size_t>(std::max(delta.call, 0));
    switch (delta.part) {
      case ChatPart::kContent: return {{"content", delta.text}};
      case ChatPart::kReasoning:
        return {{"reasoning_content", delta.text}, {"reasoning", delta.text}};
      case ChatPart::kToolCall:
        return call_json({{"index", call},
                          {"id", serve::openai_call_id(delta.id, id, index, call)},
                          {"type", "function"},
                          {"function", {{"name", delta.text}, {"arguments", ""}}}});
      case ChatPart::kToolArguments: break;
    }
    return call_json({{"index", call}, {"function", {{"arguments", delta.text}}}});
  }

  static OrderedJson call_json(OrderedJson call) {
    OrderedJson delta = OrderedJson::object();
    delta["tool_calls"] = OrderedJson::array();
    delta["tool_calls"].push_back(std::move(call));
    return delta;
  }

  OrderedJson choice_json(size_t index, OrderedJson delta, OrderedJson scores) const {
    return {{"index", index},
            {"delta", std::move(delta)},
            {"logprobs", std::move(scores)},
            {"finish_reason", nullptr}};
  }

  // The token's ids and scores stand in the first chunk that it makes.
  void add_chat(size_t index, const ServeEvent& event, std::vector<std::string>& chunks) {
    const bool is_token = event.kind == ServeEvent::Kind::kToken;
    OrderedJson scores = logprobs(index, event);
    const bool is_told = is_token && (request.has_token_ids || !scores.is_null());
    std::vector<OrderedJson> deltas;
    for (const ChatDelta& delta : event.deltas) deltas.push_back(delta_json(delta, index));
    if (deltas.empty() && is_told) deltas.push_back(OrderedJson::object());
    for (size_t i = 0; i < deltas.size(); ++i) {
      OrderedJson choice = choice_json(index, std::move(deltas[i]), std::exchange(scores, nullptr));
      if (is_token && request.has_token_ids && i == 0) {
        choice["token_ids"].push_back(event.token);
      }
      chunks.push_back(with_choice(std::move(choice)));
    }
  }

  OrderedJson text_choice(size_t index, const std::string& text) const {
    return {{"index", index}, {"text", text}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  }

  void add_text(size_t index, const ServeEvent& event, std::vector<std::string>& chunks) {
    const bool is_token = event.kind == ServeEvent::Kind::kToken;
    OrderedJson scores = logprobs(index, event);
    const bool is_told = is_token && (request.has_token_ids || !scores.is_null());
    if (event.text.empty() && !is_told) return;
    OrderedJson choice = text_choice(index, event.text);
    choice["logprobs"] = std::move(scores);
    if (is_token && request.has_token_ids) choice["token_ids"].push_back(event.token);
    chunks.push_back(with_choice(std::move(choice)));
  }

  void begin(size_t index, const ServeEvent& event, std::vector<std::string>& chunks) {
    if (std::exchange(choices[index].has_begun, true)) return;
    if (is_chat()) {
      OrderedJson all = chunk();
      all["choices"].push_back(
          choice_json(index, {{"role", "assistant"}, {"content", ""}}, nullptr));
      const bool is_told = request.has_token_ids && event.kind == ServeEvent::Kind::kPrompt;
      if (is_told) all["prompt_token_ids"] = event.prompt;
      chunks.push_back(serve::dump_openai(all));
      return;
    }
    if (request.has_token_ids && event.kind == ServeEvent::Kind::kPrompt) {
      choices[index].fields["prompt_token_ids"] = event.prompt;  // of the next chunk
    }
    if (!request.is_echoed) return;
    const ServeRequest& asked = request.requests[index];
    const std::string prompt =
        asked.tokens.empty() ? asked.text : tokenizer.decode(asked.tokens, false);
    OrderedJson choice = text_choice(index, prompt);
    if (event.kind == ServeEvent::Kind::kPrompt) {
      choices[index].lists.add_prompt(event);
      choice["logprobs"] = choices[index].lists.take();
    }
    chunks.push_back(with_choice(std::move(choice)));
  }

  void end(size_t index, const ServeEvent& event, std::vector<std::string>& chunks) {
    usage.add(index, event.counts);
    OrderedJson choice =
        is_chat() ? choice_json(index, OrderedJson::object(), nullptr) : text_choice(index, "");
    choice["finish_reason"] = serve::openai_finish_reason(event);
    choice.update(choices[index].fields);
    OrderedJson all = chunk();
    all["choices"].push_back(std::move(choice));
    if (choices.size() == 1) all["timings"] = serve::openai_timings(event.counts);
    chunks.push_back(serve::dump_openai(all));
  }
};

OpenAiStream::OpenAiStream(const OpenAiRequest& request, const Tokenizer& tokenizer,
                           std::string model, std::string id, int64_t created)
    : impl_(new Impl{request, tokenizer, std::move(model), std::move(id), created}) {}
OpenAiStream::OpenAiStream(OpenAiStream&&) noexcept = default;
OpenAiStream::~OpenAiStream() = default;

std::vector<std::string> OpenAiStream::add(size_t request, const ServeEvent& event) {
  Impl& impl = *impl_;
  std::vector<std::string> chunks;
  impl.begin(request, event, chunks);
  impl.is_chat() ? impl.add_chat(request, event, chunks) : impl.add_text(request, event, chunks);
  if (event.kind == ServeEvent::Kind::kFinish) impl.end(request, event, chunks);
  return chunks;
}

void OpenAiStream::attach(size_t request, std::string_view fields) {
  OrderedJson& own = impl_->choices.at(request).fields;
  const OrderedJson added = OrderedJson::parse(fields);
  for (const auto& [name, value] : added.items()) {
    if (own.contains(name) && own[name].is_array() && value.is_array()) {
      own[name].insert(own[name].end(), value.begin(), value.end());
    } else {
      own[name] = value;
    }
  }
}

std::vector<std::string> OpenAiStream::finish() {
  std::vector<std::string> chunks;
  if (!impl_->request.has_usage) return chunks;
  OrderedJson all = impl_->chunk();
  all["usage"] = impl_->usage.json();
  chunks.push_back(serve::dump_openai(all));
  return chunks;
}

}  // namespace vitrine
