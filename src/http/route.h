// SPDX-License-Identifier: Apache-2.0
// What a server answers where: one file with one registration for each family of routes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"
#include "vitrine/http.h"

namespace vitrine::http {

struct Embedder;
struct HttpCounts;
class AccountCloser;

/// What routes know of the server.
struct House {
  const HttpOptions& options;
  Server* server = nullptr;  ///< null while the model is being loaded
  int64_t created = 0;       ///< seconds since 1970
  HttpCounts* counts = nullptr;
  const HttpAudit* audit = nullptr;
  std::shared_ptr<AccountCloser> closer = {};
  const Embedder* embedder = nullptr;  ///< never null

  /// What requests may call models by: the first one's name first.
  std::vector<std::string> model_names() const;
  /// What the server calls the model that a body names. Throws HttpError (404) for one that there
  /// is not, where HttpOptions::strict_model says so or there are several; else it is the first.
  std::string find_model(const std::string& name) const;
  /// What replies call the model that a body names.
  std::string shown_model(const std::string& name) const;
};

enum class Access : uint8_t {
  kOpen,     ///< for everybody, before the model is loaded, too
  kLoading,  ///< with a key, before the model is loaded, too
  kKey,      ///< with a key
  kAuditor,  ///< with a key or an auditor's
};

struct Route {
  const char* method;
  const char* path;  ///< may end with "*", which stands for the rest
  Access access = Access::kKey;
  /// Runs on a worker's thread. Throws what current_failure() reads.
  Reply (*handle)(const House& house, const Request& request) = nullptr;
  /// How failures are told.
  std::string (*failure)(const Failure&) = openai_failure;
  bool is_slow = false;  ///< it computes, so it has a thread on which one request follows another
  std::string_view description = {};  ///< of its family, which the registration sets
};

struct RouteRegistration {
  RouteRegistration(std::string_view description, std::vector<Route> routes);
};

#define VITRINE_ROUTES_NAME_2(number) kRoutes##number
#define VITRINE_ROUTES_NAME(number) VITRINE_ROUTES_NAME_2(number)
/// Registers the routes of a file; once a file, at namespace scope. `description` is the JSON that
/// stands beside it, whose form openapi_document.h has.
#define VITRINE_REGISTER_ROUTES(description, ...)                            \
  const ::vitrine::http::RouteRegistration VITRINE_ROUTES_NAME(__COUNTER__)( \
      description, std::vector<::vitrine::http::Route> __VA_ARGS__)

/// All routes, in the order of their paths.
std::vector<Route> all_routes();

/// Returns the route, and sets Request::suffix. Throws HttpError (404, and 405 where the path has
/// other methods).
const Route& find_route(Request& request);

}  // namespace vitrine::http
