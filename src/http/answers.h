// SPDX-License-Identifier: Apache-2.0
// What all routes do that answer with generated text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "http/account.h"
#include "http/route.h"
#include "vitrine/openai.h"

namespace vitrine::http {

/// What a body says of its requests beside what ServeRequest has.
struct AdmitOptions {
  bool has_seed = true;           ///< otherwise one is drawn
  bool collects_records = false;  ///< the reply tells of records
};

/// Makes requests that a body asked for those of the client: its tenant, the model, and what limits
/// allow. Returns their accounts, for Exchange::accounts. Throws HttpError: 400 for more answers
/// than HttpLimits::answers, 501 for records where the engine makes none.
std::vector<std::shared_ptr<Account>> admit_requests(const House& house, const Request& request,
                                                     const std::string& model,
                                                     std::vector<ServeRequest>& requests,
                                                     const AdmitOptions& options = {});

/// Replies to a chat's requests with what `writer` makes of their events.
Reply answer_chat(const House& house, const Request& request, OpenAiRequest chat,
                  std::unique_ptr<AnswerWriter> writer);

}  // namespace vitrine::http
