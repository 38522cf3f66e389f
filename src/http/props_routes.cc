// SPDX-License-Identifier: Apache-2.0
// What llama-server's clients ask about the server: its properties, and which of its places answer.
#include "http/native_sampling.h"
#include "http/props_routes.json.h"
#include "http/route.h"
#include "vitrine/version.h"

namespace vitrine::http {

namespace {

/// The template's text; empty where there is none that can be read.
const ChatTemplate* readable_template(const Model& model) {
  try {
    return model.chat_template();
  } catch (const Error&) {
    return nullptr;
  }
}

std::string first_end(const Model& model) {
  const std::vector<int32_t>& ends = model.summary().eos_token_ids;
  const bool is_known = !ends.empty() && ends.front() < model.tokenizer().vocab_size();
  return is_known ? model.tokenizer().token_text(ends.front()) : "";
}

Reply props(const House& house, const Request& /*request*/) {
  const Model& model = house.server->model();
  const ServerOptions& options = house.server->options();
  const ChatTemplate* chat = readable_template(model);
  const std::string name = house.model_names().front();
  const std::string end = chat != nullptr ? chat->special_token("eos_token") : "";
  return json_reply({{"default_generation_settings",
                      {{"id", 0},
                       {"id_task", -1},
                       {"n_ctx", model.options().max_context},
                       {"speculative", !options.drafter.empty()},
                       {"is_processing", false},
                       {"params", native_settings(native_sampler(), -1)}}},
                     {"total_slots", options.max_running},
                     {"model_alias", name},
                     {"model_path", name},  // where it lies is nobody's business
                     {"modalities", {{"vision", false}, {"video", false}, {"audio", false}}},
                     {"endpoint_slots", house.options.has_slots},
                     {"endpoint_props", false},
                     {"endpoint_metrics", house.options.has_metrics},
                     {"chat_template", chat != nullptr ? chat->source() : ""},
                     {"chat_template_caps", Json::object()},
                     {"bos_token", chat != nullptr ? chat->special_token("bos_token") : ""},
                     {"eos_token", end.empty() ? first_end(model) : end},
                     {"build_info", "vitrine-" VITRINE_VERSION},
                     {"is_sleeping", false}});
}

Reply change_props(const House& /*house*/, const Request& /*request*/) {
  throw Error(ErrorKind::kUnsupported,
              "This server does not support changing global properties; expected fields of each "
              "request in their place");
}

// A place is whoever answers at once: which requests they are, it does not say.
Reply slots(const House& house, const Request& request) {
  if (!house.options.has_slots) {
    throw Error(ErrorKind::kUnsupported,
                "This server does not support slots endpoint. Start it with `--slots`");
  }
  const ServerOptions& options = house.server->options();
  const int64_t running = house.server->telemetry("").running;
  constexpr std::string_view kField = "fail_on_no_slot=";
  const size_t at = ("&" + request.query).find("&" + std::string(kField));
  const bool fails = at != std::string::npos &&
                     request.query.substr(at + kField.size(), 1) != "&" &&
                     at + kField.size() < request.query.size();
  if (fails && running >= options.max_running) {
    throw HttpError(503, "no slot available");
  }
  Json all = Json::array();
  for (int i = 0; i < options.max_running; ++i) {
    all.push_back({{"id", i},
                   {"n_ctx", house.server->model().options().max_context},
                   {"speculative", !options.drafter.empty()},
                   {"is_processing", i < running}});
  }
  return json_reply(all);
}

Reply change_slot(const House& /*house*/, const Request& /*request*/) {
  throw Error(ErrorKind::kUnsupported,
              "This server does not support slots action; expected 'cache_prompt' of a request, "
              "since what prompts have in common is kept for all");
}

VITRINE_REGISTER_ROUTES(kPropsRoutesJson, {
                                              {"GET", "/props", Access::kKey, props},
                                              {"POST", "/props", Access::kKey, change_props},
                                              {"GET", "/slots", Access::kKey, slots},
                                              {"POST", "/slots/*", Access::kKey, change_slot},
                                          });

}  // namespace

}  // namespace vitrine::http
