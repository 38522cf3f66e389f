// SPDX-License-Identifier: Apache-2.0
// Routes about the server itself: whether it is well, and which models it has.
#include <array>
#include <ctime>

#include "http/route.h"
#include "http/server_routes.json.h"

namespace vitrine::http {

namespace {

Reply health(const House& house, const Request& /*request*/) {
  if (house.server == nullptr) throw HttpError(503, "Loading model");
  return json_reply({{"status", "ok"}});
}

Json model_json(const House& house, const std::string& name) {
  const Model& model = house.server->model(house.find_model(name));
  const ModelSummary& summary = model.summary();
  return {{"id", name},
          {"object", "model"},
          {"created", house.created},
          {"owned_by", "vitrine"},
          {"max_model_len", model.options().max_context},
          {"meta",
           {{"n_ctx_train", summary.max_position_embeddings},
            {"n_vocab", model.tokenizer().vocab_size()}}}};
}

// Anthropic's clients ask the same paths as OpenAI's and send a header of their own.
bool asks_anthropic(const Request& request) { return !request.header("anthropic-version").empty(); }

Json anthropic_model_json(const House& house, const std::string& name) {
  const Model& model = house.server->model(house.find_model(name));
  const auto created = static_cast<std::time_t>(house.created);
  std::tm parts{};
  gmtime_r(&created, &parts);
  std::array<char, 32> text{};
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  const int64_t context = model.options().max_context;
  return {{"type", "model"},       {"id", name},
          {"display_name", name},  {"created_at", std::string(text.data(), length)},
          {"lifecycle", "active"}, {"max_input_tokens", context},
          {"max_tokens", context}};
}

Reply models(const House& house, const Request& request) {
  const bool is_anthropic = asks_anthropic(request);
  const std::vector<std::string> names = house.model_names();
  Json list = Json::array();
  for (const std::string& name : names) {
    list.push_back(is_anthropic ? anthropic_model_json(house, name) : model_json(house, name));
  }
  if (!is_anthropic) return json_reply({{"object", "list"}, {"data", list}});
  return json_reply({{"data", list},
                     {"has_more", false},
                     {"first_id", names.front()},
                     {"last_id", names.back()}});
}

// What requests may name, is there: any name, where the server does not insist on one.
Reply one_model(const House& house, const Request& request) {
  const std::string found = house.find_model(request.suffix);
  Json model =
      asks_anthropic(request) ? anthropic_model_json(house, found) : model_json(house, found);
  model["id"] = request.suffix;
  if (model.contains("display_name")) model["display_name"] = request.suffix;
  return json_reply(model);
}

VITRINE_REGISTER_ROUTES(kServerRoutesJson, {
                                               {"GET", "/health", Access::kOpen, health},
                                               {"GET", "/v1/health", Access::kOpen, health},
                                               {"GET", "/v1/models", Access::kKey, models},
                                               {"GET", "/models", Access::kKey, models},
                                               {"GET", "/v1/models/*", Access::kKey, one_model},
                                           });

}  // namespace

}  // namespace vitrine::http
