// SPDX-License-Identifier: Apache-2.0
#include "http/answers.h"

#include <algorithm>

namespace vitrine::http {

void admit_requests(const House& house, const Request& request, const std::string& model,
                    std::vector<ServeRequest>& requests) {
  const HttpLimits& limits = house.options.limits;
  if (std::ssize(requests) > limits.answers) {
    throw HttpError({.status = 400,
                     .type = failure_type(400),
                     .message = "'n' asks for " + std::to_string(requests.size()) +
                                " answers to all prompts together; expected " +
                                std::to_string(limits.answers) + " at most",
                     .param = "n"});
  }
  for (ServeRequest& one : requests) {
    one.model = model;
    one.tenant = request.client.tenant;
    if (limits.max_tokens > 0) {
      one.max_new_tokens =
          static_cast<int>(std::min<int64_t>(one.max_new_tokens, limits.max_tokens));
    }
  }
}

}  // namespace vitrine::http
