// SPDX-License-Identifier: Apache-2.0
#include "http/answers.h"

#include <sodium.h>

#include <algorithm>
#include <utility>

namespace vitrine::http {

namespace {

std::shared_ptr<Account> open_account(const House& house, const Request& request, ServeRequest& one,
                                      bool collects) {
  auto account = std::make_shared<Account>(*house.audit, house, request, one, collects);
  one.audit = account->sink();
  if (one.audit == nullptr) return account;
  // The server's copy of the request keeps the account until nothing writes to it.
  one.on_end = [account, closer = house.closer](const ServeEvent& last) {
    closer->close(account, std::string(stop_reason_name(last.reason)));
  };
  return account;
}

}  // namespace

std::vector<std::shared_ptr<Account>> admit_requests(const House& house, const Request& request,
                                                     const std::string& model,
                                                     std::vector<ServeRequest>& requests,
                                                     const AdmitOptions& options) {
  const HttpLimits& limits = house.options.limits;
  if (std::ssize(requests) > limits.answers) {
    throw HttpError({.status = 400,
                     .type = failure_type(400),
                     .message = "'n' asks for " + std::to_string(requests.size()) +
                                " answers to all prompts together; expected " +
                                std::to_string(limits.answers) + " at most",
                     .param = "n"});
  }
  const bool records = house.server->model(model).options().audit_mode != AuditMode::kNone;
  if (options.collects_records && !records) {
    throw HttpError(501,
                    "this server keeps no records of tokens; expected one that was started "
                    "without --audit-mode none");
  }
  uint64_t seed = 0;
  randombytes_buf(&seed, sizeof seed);
  constexpr uint64_t kWholeInDoubles = (uint64_t{1} << 53) - 1;  // so that JSON's readers keep it
  std::vector<std::shared_ptr<Account>> accounts;
  for (ServeRequest& one : requests) {
    if (!options.has_seed) one.sampler.seed = seed & kWholeInDoubles;
    one.model = model;
    one.tenant = request.client.tenant;
    if (limits.max_tokens > 0) {
      one.max_new_tokens =
          static_cast<int>(std::min<int64_t>(one.max_new_tokens, limits.max_tokens));
    }
    accounts.push_back(open_account(house, request, one, options.collects_records));
  }
  return accounts;
}

Reply answer_chat(const House& house, const Request& request, OpenAiRequest chat,
                  std::unique_ptr<AnswerWriter> writer) {
  Reply reply;
  reply.exchange = std::make_unique<Exchange>();
  Exchange& exchange = *reply.exchange;
  exchange.server = house.server;
  exchange.is_streamed = chat.is_streamed;
  exchange.requests = std::move(chat.requests);
  exchange.writer = std::move(writer);
  exchange.accounts = admit_requests(house, request, house.find_model(chat.model),
                                     exchange.requests, {.has_seed = chat.has_seed});
  return reply;
}

}  // namespace vitrine::http
