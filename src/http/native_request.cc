// SPDX-License-Identifier: Apache-2.0
#include "http/native_request.h"

#include <algorithm>
#include <limits>

#include "http/native_sampling.h"
#include "serve/openai_fields.h"
#include "vitrine/openai.h"

namespace vitrine::http {

namespace {

using nlohmann::json;
using serve::Fields;
using serve::refuse_field;

constexpr size_t kMostPrompts = 2048;
constexpr int64_t kMostProbs = 100, kMostTokens = 1 << 30;

constexpr const char* kPromptForm =
    "a text, a list of ids and texts, an object with 'prompt_string', or a list of these";

int32_t read_id(const Tokenizer& tokenizer, const json& value, const std::string& field) {
  const bool is_id =
      value.is_number_integer() && value >= 0 && value < int64_t{tokenizer.vocab_size()};
  if (!is_id) {
    refuse_field(field, value,
                 "ids of tokens from 0 to " + std::to_string(tokenizer.vocab_size() - 1));
  }
  return value.get<int32_t>();
}

std::vector<int32_t> read_prompt(const Tokenizer& tokenizer, const json& prompt,
                                 const std::string& field) {
  std::vector<int32_t> ids;
  if (prompt.is_string()) {
    ids = tokenizer.encode(prompt.get_ref<const std::string&>());
  } else if (prompt.is_array()) {
    for (const json& part : prompt) {
      if (part.is_string()) {
        const std::vector<int32_t> more =
            tokenizer.encode(part.get_ref<const std::string&>(), &part == &prompt.front());
        ids.insert(ids.end(), more.begin(), more.end());
      } else {
        ids.push_back(read_id(tokenizer, part, field));
      }
    }
  } else if (prompt.is_object() && prompt.contains("prompt_string")) {
    const auto media = prompt.find("multimodal_data");
    const bool has_media = media != prompt.end() && !media->is_null();
    if (has_media && !media->is_array()) {
      refuse_field("multimodal_data", *media, "an empty list, since the model reads text alone");
    }
    if (has_media && !media->empty()) {
      throw Error(ErrorKind::kUnsupported,
                  "'multimodal_data' is there; expected text alone, since the model reads nothing "
                  "else");
    }
    const json& text = prompt["prompt_string"];
    if (!text.is_string() && !text.is_array()) refuse_field("prompt_string", text, "a text");
    return read_prompt(tokenizer, text, "prompt_string");
  } else {
    refuse_field(field, prompt, kPromptForm);
  }
  if (ids.empty()) refuse_field(field, prompt, "prompts of a token or more");
  return ids;
}

/// Refuses what would change an answer and is not there.
void refuse_missing(const Fields& fields) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorKind::kUnsupported, what); };
  bool after_sampling = false;
  int probs = 0, kept = 0;
  fields.read("post_sampling_probs", after_sampling);
  fields.read("n_probs", probs, 0, kMostProbs);
  if (after_sampling && probs > 0) {
    refuse(
        "'post_sampling_probs' is true; expected false, since probabilities are those of the "
        "model, before sampling");
  }
  fields.read("min_keep", kept, 0, kMostTokens);
  if (kept > 1)
    refuse("'min_keep' is " + std::to_string(kept) + "; expected 0, since no stage has it");
  if (const json* lora = fields.find("lora"); lora != nullptr && !lora->empty()) {
    refuse("'lora' is there; expected an adapter's name in 'model'");
  }
}

/// What llama-server's bodies and OpenAI's have alike, as OpenAI's reader takes it.
json common_fields(const json& body) {
  json common = {{"prompt", {0}}};
  for (const char* name : {"response_format", "structured_outputs", "grammar", "json_schema",
                           "stop_token_ids", "priority", "cache_prompt"}) {
    if (body.contains(name)) common[name] = body[name];
  }
  // An empty schema is that of any object.
  if (common.contains("json_schema") && common["json_schema"].is_object() &&
      common["json_schema"].empty()) {
    common["json_schema"]["type"] = "object";
  }
  if (const auto stop = body.find("stop"); stop != body.end() && !stop->empty()) {
    common["stop"] = *stop;
    // Clients leave empty texts in the list.
    if (stop->is_array()) {
      common["stop"] = json::array();
      for (const json& each : *stop) {
        if (each != "") common["stop"].push_back(each);
      }
    } else if (*stop == "") {
      common.erase("stop");
    }
  }
  return common;
}

// All names are read, so that a wrong value is told; the last one that is there counts.
int read_limit(const Fields& fields) {
  int limit = -1;
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    fields.read(name, limit, -2, kMostTokens);
  }
  return std::max(limit, -1);
}

int read_probs(const Fields& fields) {
  int probs = 0;
  for (const char* name : {"logprobs", "n_probs"}) fields.read(name, probs, 0, kMostProbs);
  return probs;
}

// Hints for infilling, and what has no meaning here: they are read, so that a wrong one is told.
void read_hints(const Fields& fields) {
  for (const char* name : {"n_indent", "n_keep", "n_discard", "n_cache_reuse", "t_max_predict_ms",
                           "t_max_prompt_ms", "sse_ping_interval"}) {
    int hint = 0;
    fields.read(name, hint, -1, std::numeric_limits<int32_t>::max());
  }
  bool is_told = false;
  fields.read("return_progress", is_told);
}

}  // namespace

std::vector<std::vector<int32_t>> read_native_prompts(const Tokenizer& tokenizer,
                                                      const json& prompts,
                                                      const std::string& field) {
  // Where a number stands in the list, it is one prompt.
  const bool is_list = prompts.is_array() && std::ranges::none_of(prompts, &json::is_number);
  if (!is_list) return {read_prompt(tokenizer, prompts, field)};
  if (prompts.empty() || prompts.size() > kMostPrompts) {
    refuse_field(field, static_cast<int64_t>(prompts.size()),
                 "a list of 1 to " + std::to_string(kMostPrompts) + " prompts");
  }
  std::vector<std::vector<int32_t>> read;
  for (const json& prompt : prompts) read.push_back(read_prompt(tokenizer, prompt, field));
  return read;
}

NativeRequest read_native_request(const House& house, const json& body,
                                  const std::vector<std::vector<int32_t>>& prompts) {
  const Fields fields(body);
  NativeRequest read;
  fields.read("model", read.model);
  fields.read("stream", read.is_streamed);
  fields.read("return_tokens", read.returns_tokens);
  fields.read("timings_per_token", read.has_timings);
  int slot = -1;
  fields.read("id_slot", slot, -1, std::numeric_limits<int32_t>::max());
  read.slot = slot;
  fields.read_texts("response_fields", read.response_fields, 256);
  refuse_missing(fields);
  read_hints(fields);
  const std::string name = house.find_model(read.model);
  const Model& model = house.server->model(name);
  ServeRequest one =
      read_openai_request(OpenAiRoute::kCompletions,
                          common_fields(body).dump(-1, ' ', true, json::error_handler_t::replace))
          .requests.front();
  one.sampler = read_native_sampler(fields, model);
  fields.read("ignore_eos", one.ignore_end_of_text);
  const int n_predict = read_limit(fields);
  one.max_new_tokens = n_predict < 0 ? kEndlessAnswer : n_predict;
  const int probs = read_probs(fields);
  one.logprobs = probs > 0 ? probs : -1;
  const std::vector<int32_t>& ends = model.end_of_turn_ids();
  one.stop_token_ids.insert(one.stop_token_ids.end(), ends.begin(), ends.end());
  int answers = 1;
  for (const char* name : {"n", "n_cmpl"}) fields.read(name, answers, 1, 128);
  const char* const field = fields.has("n_cmpl") ? "n_cmpl" : "n";
  if (std::ssize(prompts) * answers > house.options.limits.answers) {
    refuse_field(field, answers,
                 "at most " + std::to_string(house.options.limits.answers) +
                     " answers to all prompts together");
  }
  one.tokens.clear();
  for (const std::vector<int32_t>& prompt : prompts) {
    for (int answer = 0; answer < answers; ++answer) {
      ServeRequest& added = read.requests.emplace_back(one);
      added.branch = static_cast<uint32_t>(answer);
      added.tokens = prompt;
    }
  }
  read.settings = native_settings(one.sampler, n_predict);
  Json& settings = read.settings;
  settings["stop"] = one.stop;
  settings["ignore_eos"] = one.ignore_end_of_text;
  settings["stream"] = read.is_streamed;
  settings["n_probs"] = probs;
  settings["timings_per_token"] = read.has_timings;
  if (one.constraint.kind == ServeConstraint::Kind::kGrammar) {
    settings["grammar"] = one.constraint.text;
  }
  return read;
}

}  // namespace vitrine::http
