// SPDX-License-Identifier: Apache-2.0
// OpenAI's chat completions and completions.
#include <ctime>
#include <utility>

#include "http/account_json.h"
#include "http/answers.h"
#include "http/openai_routes.json.h"
#include "http/route.h"
#include "vitrine/openai.h"

namespace vitrine::http {

namespace {

/// Frames a stream, or gathers a whole body.
class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(const OpenAiRequest& request, const Tokenizer& tokenizer, const std::string& model,
               const std::string& id, int64_t created,
               std::vector<std::shared_ptr<Account>> accounts)
      : tokenizer_(tokenizer),
        accounts_(std::move(accounts)),
        tells_routes_(request.has_routed_experts),
        tells_account_(request.has_account),
        routes_(accounts_.size()) {
    if (request.is_streamed) {
      stream_.emplace(request, tokenizer, model, id, created);
    } else {
      response_.emplace(request, tokenizer, model, id, created);
    }
  }

  std::string add(size_t request, const ServeEvent& event) override {
    const Json fields = fields_of(request, event.kind == ServeEvent::Kind::kFinish);
    if (!fields.empty()) {
      response_ ? response_->attach(request, dump(fields)) : stream_->attach(request, dump(fields));
    }
    if (response_) {
      response_->add(request, event);
      return "";
    }
    return frames(stream_->add(request, event));
  }
  std::string finish() override {
    if (response_) return response_->body();
    return frames(stream_->finish()) + sse_frame("[DONE]");
  }
  std::string fail(const Failure& failure) override { return sse_frame(openai_failure(failure)); }

 private:
  static std::string frames(const std::vector<std::string>& chunks) {
    std::string all;
    for (const std::string& chunk : chunks) all += sse_frame(chunk);
    return all;
  }

  // What the records of a request say beside its text: a stream tells the account as it comes.
  Json fields_of(size_t request, bool is_last) {
    Json fields = Json::object();
    RecordCollector* collector = accounts_[request]->collector();
    if (collector == nullptr || (!is_last && !stream_)) return fields;
    std::vector<TokenRecord> records = collector->take();
    if (tells_account_) {
      Json account = account_json(records, tokenizer_);
      if (!account.empty()) fields["account"] = std::move(account);
      const std::vector<int64_t> drafted = collector->take_drafted();
      if (!drafted.empty()) fields["drafted_positions"] = drafted;
    }
    if (!tells_routes_) return fields;
    std::vector<TokenRecord>& all = routes_[request];
    all.insert(all.end(), std::make_move_iterator(records.begin()),
               std::make_move_iterator(records.end()));
    if (is_last) fields["sgl_ext"] = routed_experts_json(all, collector->sparse_layers());
    return fields;
  }

  const Tokenizer& tokenizer_;
  const std::vector<std::shared_ptr<Account>> accounts_;
  const bool tells_routes_, tells_account_;
  std::vector<std::vector<TokenRecord>> routes_;  // by request
  std::optional<OpenAiResponse> response_;
  std::optional<OpenAiStream> stream_;
};

Reply answer(const House& house, const Request& request, OpenAiRoute route, const char* prefix) {
  OpenAiRequest read = read_openai_request(route, request.body, house.options.limits.answers);
  auto exchange = std::make_unique<Exchange>();
  exchange->is_streamed = read.is_streamed;
  exchange->requests = std::move(read.requests);
  const std::string model = house.find_model(read.model);
  exchange->accounts = admit_requests(
      house, request, model, exchange->requests,
      {.has_seed = read.has_seed, .collects_records = read.has_routed_experts || read.has_account});
  read.requests = exchange->requests;
  exchange->server = house.server;
  exchange->writer = std::make_unique<OpenAiWriter>(
      read, house.server->model(model).tokenizer(), house.shown_model(read.model),
      prefix + random_id(), std::time(nullptr), exchange->accounts);
  Reply reply;
  reply.exchange = std::move(exchange);
  return reply;
}

Reply chat(const House& house, const Request& request) {
  return answer(house, request, OpenAiRoute::kChatCompletions, "chatcmpl-");
}

Reply complete(const House& house, const Request& request) {
  return answer(house, request, OpenAiRoute::kCompletions, "cmpl-");
}

VITRINE_REGISTER_ROUTES(kOpenaiRoutesJson, {
                                               {"POST", "/v1/chat/completions", Access::kKey, chat},
                                               {"POST", "/chat/completions", Access::kKey, chat},
                                               {"POST", "/v1/completions", Access::kKey, complete},
                                           });

}  // namespace

}  // namespace vitrine::http
