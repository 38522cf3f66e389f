// SPDX-License-Identifier: Apache-2.0
// GET /openapi.json: what this server answers where, for programs and their makers.
#include "http/openapi_document.h"
#include "http/openapi_routes.json.h"
#include "http/route.h"

namespace vitrine::http {

namespace {

Reply describe(const House& house, const Request& /*request*/) {
  return json_reply(openapi_document(all_routes(), !house.options.keys.empty()));
}

VITRINE_REGISTER_ROUTES(kOpenapiRoutesJson, {{"GET", "/openapi.json", Access::kLoading, describe}});

}  // namespace

}  // namespace vitrine::http
