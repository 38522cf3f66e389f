// SPDX-License-Identifier: Apache-2.0
#include "api_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace cli {

namespace {

using vitrine::Error;
using vitrine::ErrorKind;

constexpr size_t kMostPrompts = 8;  // of one request

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

/// A prompt without the blanks at its end, which go with what follows.
size_t context_end(const std::string& text) {
  const size_t end = text.find_last_not_of(" \t\n") + 1;
  return end == 0 ? text.size() : end;
}

const ApiJson& choice_list(const ApiJson& reply, size_t count, const std::string& url) {
  const ApiJson& choices = list_of(reply, "choices", url);
  const bool fits = choices.size() == count && std::ranges::all_of(choices, [](const ApiJson& one) {
                      return one.is_object();
                    });
  if (!fits) refuse_reply(url, "choices", &choices, fmt::format("{} objects", count));
  return choices;
}

/// Nats of each id of a prompt; the first has none. `prompt_logprobs`, as vLLM has it.
void read_positions(const ApiJson& list, std::span<const int32_t> ids, int best,
                    const std::string& url, std::vector<vitrine::TextPosition>& positions) {
  if (list.size() < ids.size()) {
    refuse_reply(url, "prompt_logprobs", &list, fmt::format("{} entries", ids.size()));
  }
  for (size_t i = 1; i < ids.size(); ++i) {
    vitrine::TextPosition& position = positions.emplace_back();
    position.token = ids[i];
    bool is_there = false;
    if (!list[i].is_object()) refuse_reply(url, "prompt_logprobs", &list[i], "an object");
    for (const auto& [key, entry] : list[i].items()) {
      int32_t id = -1;
      const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
      const ApiJson* value = entry.is_object() ? find_value(entry, "logprob") : nullptr;
      if (problem != std::errc() || end != key.data() + key.size() || id < 0 || value == nullptr) {
        refuse_reply(url, "prompt_logprobs", &list[i], "ids, with a 'logprob' each");
      }
      const auto logprob = static_cast<float>(logprob_value(*value, url));
      if (id == position.token) {
        position.logprob = logprob;
        is_there = true;
      }
      position.best.emplace_back(id, logprob);
    }
    if (!is_there) {
      refuse_reply(url, "prompt_logprobs", &list[i], fmt::format("id {} among them", ids[i]));
    }
    std::ranges::sort(position.best, [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
    // The token that stands there is told, too, however improbable it is.
    if (std::ssize(position.best) > best) position.best.resize(static_cast<size_t>(best));
  }
}

}  // namespace

// Nothing where the server refuses the request; what is no answer throws.
std::optional<ApiJson> ApiScores::post(const std::string& url, const ApiJson& body) {
  const ApiReply reply =
      client_.post(url, body.dump(-1, ' ', false, ApiJson::error_handler_t::replace));
  if (reply.status == 401 || reply.status == 403) throw_status(url, reply);
  if (reply.status != 200) return std::nullopt;
  return parse_reply(reply.body, url);
}

bool ApiScores::try_echo(int max_tokens) {
  constexpr std::string_view kText = "One two three four";
  echo_tokens_ = max_tokens;
  const std::optional<ApiJson> reply = post(completions(), echo_body(ApiJson(kText)));
  bool echoes = false;
  if (reply) {
    const ApiJson* choices = find_value(*reply, "choices");
    const bool has_one = choices != nullptr && choices->is_array() && !choices->empty() &&
                         choices->front().is_object();
    const ApiJson* logprobs = has_one ? find_value(choices->front(), "logprobs") : nullptr;
    const ApiJson* values = logprobs != nullptr && logprobs->is_object()
                                ? find_value(*logprobs, "token_logprobs")
                                : nullptr;
    echoes = values != nullptr && values->is_array() && values->size() > 2 &&
             text_of(choices->front(), "text", completions()).starts_with(kText);
  }
  if (!echoes) echo_tokens_ = -1;
  return echoes;
}

void ApiScores::find_abilities() {
  if (!std::exchange(is_known_, true)) {
    if (!try_echo(0)) try_echo(1);
    if (echo_tokens_ >= 0) {
      const std::optional<ApiJson> reply =
          post(client_.place().root + "/tokenize",
               {{"model", server_.model}, {"prompt", "One two"}, {"add_special_tokens", true}});
      const ApiJson* tokens = reply ? find_value(*reply, "tokens") : nullptr;
      has_ids_ = tokens != nullptr && tokens->is_array() && !tokens->empty() &&
                 tokens->front().is_number_integer() && reply->contains("count");
    }
  }
  if (echo_tokens_ >= 0) return;
  throw Error(ErrorKind::kUnsupported,
              completions() +
                  ": the server does not tell log-probabilities of a prompt; expected "
                  "one that takes 'echo' beside 'logprobs'");
}

ApiScores::Ids ApiScores::encode(const std::string& text, bool adds_special) {
  const std::string url = client_.place().root + "/tokenize";
  const ApiJson body = {
      {"model", server_.model}, {"prompt", text}, {"add_special_tokens", adds_special}};
  const ApiReply reply =
      client_.post(url, body.dump(-1, ' ', false, ApiJson::error_handler_t::replace));
  if (!reply.is_fine()) throw_status(url, reply);
  return ids_of(list_of(parse_reply(reply.body, url), "tokens", url), "tokens", url);
}

ApiScores::Ids ApiScores::encode_chat(const vitrine::ScoringRequest& request) {
  const std::string url = client_.place().root + "/tokenize";
  ApiJson body = {{"model", server_.model}, {"messages", messages_json(request.messages)}};
  if (!request.chat.tools_json.empty()) body["tools"] = ApiJson::parse(request.chat.tools_json);
  const ApiReply reply =
      client_.post(url, body.dump(-1, ' ', false, ApiJson::error_handler_t::replace));
  if (!reply.is_fine()) throw_status(url, reply);
  return ids_of(list_of(parse_reply(reply.body, url), "tokens", url), "tokens", url);
}

std::string ApiScores::apply_template(const vitrine::ScoringRequest& request) {
  const std::string url = client_.place().root + "/apply-template";
  ApiJson body = {{"model", server_.model}, {"messages", messages_json(request.messages)}};
  if (!request.chat.tools_json.empty()) body["tools"] = ApiJson::parse(request.chat.tools_json);
  const std::optional<ApiJson> reply = post(url, body);
  const std::string text = reply ? text_of(*reply, "prompt", url) : "";
  if (!text.empty()) return text;
  throw Error(ErrorKind::kUnsupported,
              url +
                  ": the server does not tell a conversation's text; expected one that has "
                  "/tokenize for messages or /apply-template");
}

ApiJson ApiScores::echo_body(const ApiJson& prompt) const {
  return {{"model", server_.model},
          {"prompt", prompt},
          {"max_tokens", echo_tokens_},
          {"temperature", 0},
          {"echo", true},
          {"logprobs", 1},
          {"seed", 0}};
}

// The choices, in the order of what was asked; several prompts in one request where it takes them.
std::vector<ApiJson> ApiScores::ask(const std::vector<Echoed>& asked) {
  std::vector<ApiJson> choices;
  while (choices.size() < asked.size()) {
    const size_t count =
        takes_lists_ ? std::min(kMostPrompts, asked.size() - choices.size()) : size_t{1};
    ApiJson prompt = asked[choices.size()].prompt;
    if (count > 1) {
      prompt = ApiJson::array();
      for (size_t i = 0; i < count; ++i) prompt.push_back(asked[choices.size() + i].prompt);
    }
    const ApiReply reply = client_.post(
        completions(), echo_body(prompt).dump(-1, ' ', false, ApiJson::error_handler_t::replace));
    if (!reply.is_fine() && count > 1) {
      takes_lists_ = false;
      continue;
    }
    if (!reply.is_fine()) throw_status(completions(), reply);
    const ApiJson json = parse_reply(reply.body, completions());
    const size_t begin = choices.size();
    choices.resize(begin + count);
    for (const ApiJson& choice : choice_list(json, count, completions())) {
      const auto index = static_cast<size_t>(count_of(choice, "index", completions()));
      if (index >= count || !choices[begin + index].is_null()) {
        refuse_reply(completions(), "index", find_value(choice, "index"), "each choice once");
      }
      choices[begin + index] = choice;
    }
  }
  return choices;
}

void ApiScores::read_choice(const ApiJson& choice, const Echoed& asked,
                            vitrine::ScoredContinuations& scored) const {
  const std::string url = completions();
  const ApiJson* logprobs = find_value(choice, "logprobs");
  if (logprobs == nullptr || !logprobs->is_object()) {
    refuse_reply(url, "logprobs", logprobs, "an object");
  }
  const ApiJson& values = list_of(*logprobs, "token_logprobs", url);
  size_t first = asked.first, end = asked.count;
  if (asked.prompt.is_string()) {  // a token that reaches into the continuation belongs to it
    const ApiJson& offsets = list_of(*logprobs, "text_offset", url);
    if (offsets.size() != values.size()) refuse_reply(url, "text_offset", &offsets, "one a token");
    const auto offset = [&](size_t i) {
      if (!offsets[i].is_number_unsigned()) refuse_reply(url, "text_offset", &offsets[i], "counts");
      return offsets[i].get<size_t>();
    };
    first = 0;
    while (first + 1 < values.size() && offset(first + 1) <= asked.first) ++first;
    end = first;
    while (end < values.size() && offset(end) < asked.count) ++end;
  }
  if (values.size() < end || first >= end) {
    refuse_reply(url, "token_logprobs", &values, "the tokens of the prompt");
  }
  const ApiJson* best = find_value(*logprobs, "top_logprobs");
  const bool has_best = best != nullptr && best->is_array() && best->size() >= end;
  std::vector<double>& list = scored.logprobs.emplace_back();
  bool is_greedy = has_best;
  for (size_t i = first; i < end; ++i) {
    if (values[i].is_null()) {
      throw Error(ErrorKind::kUnsupported,
                  url +
                      ": a continuation begins with the prompt's first token, of which nobody "
                      "knows a probability; expected a prompt before it");
    }
    list.push_back(logprob_value(values[i], url));
    if (!has_best || !(*best)[i].is_object()) continue;
    for (const auto& [token, value] : (*best)[i].items()) {
      if (logprob_value(value, url) > list.back()) is_greedy = false;
    }
  }
  scored.is_greedy.push_back(is_greedy ? 1 : 0);
}

vitrine::ScoredContinuations ApiScores::score_ids(const Ids& context,
                                                  const std::vector<Ids>& continuations) {
  if (context.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "a continuation is scored behind no prompt at all");
  }
  std::vector<Echoed> asked;
  for (const Ids& continuation : continuations) {
    Ids ids = context;
    ids.insert(ids.end(), continuation.begin(), continuation.end());
    asked.push_back({ApiJson(ids), context.size(), ids.size()});
  }
  vitrine::ScoredContinuations scored;
  const std::vector<ApiJson> choices = ask(asked);
  for (size_t i = 0; i < asked.size(); ++i) read_choice(choices[i], asked[i], scored);
  scored.prompt_sha256 = prompt_hash(context);
  scored.prompt_tokens = std::ssize(context);
  return scored;
}

vitrine::ScoredContinuations ApiScores::score_text(const std::string& context,
                                                   const std::vector<std::string>& continuations) {
  const size_t first = num_characters(std::string_view(context).substr(0, context_end(context)));
  std::vector<Echoed> asked;
  for (const std::string& continuation : continuations) {
    const std::string text = context + continuation;
    asked.push_back({ApiJson(text), first, num_characters(text)});
  }
  vitrine::ScoredContinuations scored;
  const std::vector<ApiJson> choices = ask(asked);
  for (size_t i = 0; i < asked.size(); ++i) read_choice(choices[i], asked[i], scored);
  return scored;
}

vitrine::ScoredContinuations ApiScores::score(const vitrine::ScoringRequest& request) {
  find_abilities();
  std::vector<Ids> continuations;
  if (!request.messages.empty()) {
    if (!has_ids_) return score_text(apply_template(request), request.continuations);
    for (const std::string& text : request.continuations) {
      continuations.push_back(encode(text, false));
    }
    return score_ids(encode_chat(request), continuations);
  }
  if (!has_ids_) return score_text(request.text, request.continuations);
  const vitrine::DividedIds divided =
      vitrine::divide_ids(request.text, request.continuations,
                          [&](const std::string& text) { return encode(text, true); });
  return score_ids(divided.context, divided.continuations);
}

std::vector<vitrine::TextPosition> ApiScores::predict(const std::string& text, int64_t window,
                                                      int best) {
  find_abilities();
  if (!has_ids_) {
    throw Error(ErrorKind::kUnsupported,
                client_.place().root +
                    "/tokenize: the server does not tell a text's ids; expected one that takes "
                    "'prompt' there, as Vitrine and vLLM do");
  }
  const Ids ids = encode(text, true);
  if (server_.max_context > echo_tokens_) {
    window = std::min<int64_t>(window, server_.max_context - echo_tokens_);
  }
  std::vector<vitrine::TextPosition> positions;
  const auto width = static_cast<size_t>(std::max<int64_t>(window, 2));
  for (size_t begin = 0; begin + 1 < ids.size(); begin += width) {
    const std::span<const int32_t> part =
        std::span(ids).subspan(begin, std::min(width, ids.size() - begin));
    if (part.size() < 2) break;
    ApiJson body = echo_body(ApiJson(std::vector<int32_t>(part.begin(), part.end())));
    body.erase("echo");
    body.erase("logprobs");
    ApiReply reply;
    for (;;) {
      body["prompt_logprobs"] = std::min(best, prompt_logprobs_);
      reply = client_.post(completions(), body.dump());
      if (reply.status != 400 || prompt_logprobs_ <= 1) break;
      prompt_logprobs_ = prompt_logprobs_ > 5 ? 5 : 1;  // a server's limit
    }
    if (!reply.is_fine()) throw_status(completions(), reply);
    const ApiJson json = parse_reply(reply.body, completions());
    const ApiJson& choice = choice_list(json, 1, completions()).front();
    if (find_value(choice, "prompt_logprobs") == nullptr) {
      throw Error(ErrorKind::kUnsupported,
                  completions() +
                      ": the server does not tell 'prompt_logprobs'; expected one that "
                      "does, as Vitrine and vLLM do");
    }
    read_positions(list_of(choice, "prompt_logprobs", completions()), part,
                   std::min(best, prompt_logprobs_), completions(), positions);
  }
  return positions;
}

}  // namespace cli
