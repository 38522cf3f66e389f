// SPDX-License-Identifier: Apache-2.0
// Routes about the server itself: whether it is well, and which models it has.
#include "http/route.h"

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

Reply models(const House& house, const Request& /*request*/) {
  Json list = Json::array();
  for (const std::string& name : house.model_names()) list.push_back(model_json(house, name));
  return json_reply({{"object", "list"}, {"data", list}});
}

// What requests may name, is there: any name, where the server does not insist on one.
Reply one_model(const House& house, const Request& request) {
  Json model = model_json(house, house.find_model(request.suffix));
  model["id"] = request.suffix;
  return json_reply(model);
}

VITRINE_REGISTER_ROUTES({
    {"GET", "/health", Access::kOpen, health},
    {"GET", "/v1/health", Access::kOpen, health},
    {"GET", "/v1/models", Access::kKey, models},
    {"GET", "/models", Access::kKey, models},
    {"GET", "/v1/models/*", Access::kKey, one_model},
});

}  // namespace

}  // namespace vitrine::http
