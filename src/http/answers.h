// SPDX-License-Identifier: Apache-2.0
// What all routes do that answer with generated text.
#pragma once

#include <string>
#include <vector>

#include "http/route.h"

namespace vitrine::http {

/// Makes requests that a body asked for those of the client: its tenant, the model, and what limits
/// allow. Throws HttpError (400) for more answers than HttpLimits::answers.
void admit_requests(const House& house, const Request& request, const std::string& model,
                    std::vector<ServeRequest>& requests);

}  // namespace vitrine::http
