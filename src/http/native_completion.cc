// SPDX-License-Identifier: Apache-2.0
// llama-server's own completions. Its /completions is this one, and OpenAI's stands below /v1.
#include "core/json_text.h"
#include "http/native_answer.h"
#include "http/native_completion.json.h"
#include "serve/openai_fields.h"

namespace vitrine::http {

namespace {

Reply complete(const House& house, const Request& request) {
  const nlohmann::json body = parse_json_object(request.body, "the body");
  const serve::Fields fields(body);
  const nlohmann::json* prompt = fields.find("prompt");
  if (prompt == nullptr) {
    serve::refuse_field("prompt", nullptr, "a text, ids, or a list of either");
  }
  std::string model;
  fields.read("model", model);
  const Tokenizer& tokenizer = house.server->model(house.find_model(model)).tokenizer();
  return native_reply(
      house, request,
      read_native_request(house, body, read_native_prompts(tokenizer, *prompt, "prompt")));
}

VITRINE_REGISTER_ROUTES(kNativeCompletionJson, {
                                                   {"POST", "/completion", Access::kKey, complete},
                                                   {"POST", "/completions", Access::kKey, complete},
                                               });

}  // namespace

}  // namespace vitrine::http
