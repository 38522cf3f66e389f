// SPDX-License-Identifier: Apache-2.0
// What the server answers where, as OpenAPI 3.1 says it: made of what stands beside each family of
// routes. FAMILY.json beside FAMILY.cc has
//
//     "tag"      what documents call the family
//     "failure"  the schema of what is told of failures; "Error" where it is not there
//     "paths"    paths as OpenAPI has them, where "{name}" stands for a route's "*". Each is what a
//                Path Item Object is, or the path that it is another name of. An operation's
//                "failures" are statuses beside those that all routes have.
//     "schemas", "responses"
//                what they refer to as "#/components/schemas/NAME", of one family for all
#pragma once

#include "http/route.h"

namespace vitrine::http {

/// Describes the routes of all families. `has_keys`: the server lets nobody in without one.
Json openapi_document(const std::vector<Route>& routes, bool has_keys);

}  // namespace vitrine::http
