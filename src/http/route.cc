// SPDX-License-Identifier: Apache-2.0
#include "http/route.h"

#include <algorithm>
#include <utility>

namespace vitrine::http {

namespace {

std::vector<Route>& registry() {
  static std::vector<Route> routes;
  return routes;
}

// Whether the route's path is this one; `suffix` gets what its "*" stands for.
bool matches(const Route& route, std::string_view path, std::string& suffix) {
  std::string_view pattern = route.path;
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  if (!path.starts_with(pattern) || path.size() == pattern.size()) return false;
  suffix = path.substr(pattern.size());
  return true;
}

}  // namespace

RouteRegistration::RouteRegistration(std::string_view description, std::vector<Route> routes) {
  for (Route& route : routes) route.description = description;
  registry().insert(registry().end(), routes.begin(), routes.end());
}

std::vector<Route> all_routes() {
  std::vector<Route> routes = registry();
  std::ranges::sort(routes, [](const Route& a, const Route& b) {
    return std::pair(std::string_view(a.path), std::string_view(a.method)) <
           std::pair(std::string_view(b.path), std::string_view(b.method));
  });
  return routes;
}

const Route& find_route(Request& request) {
  const Route* other = nullptr;
  std::string allowed;
  for (const Route& route : registry()) {
    std::string suffix;
    if (!matches(route, request.path, suffix)) continue;
    // What answers GET answers HEAD, without the body.
    const bool is_head = request.method == "HEAD" && std::string_view(route.method) == "GET";
    if (request.method == route.method || is_head) {
      request.suffix = std::move(suffix);
      return route;
    }
    other = &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  if (other == nullptr) {
    throw HttpError(404, "there is no '" + request.path + "'; docs/http.md lists the paths");
  }
  Failure failure{.status = 405,
                  .type = failure_type(405),
                  .message = "'" + request.path + "' does not take " + request.method +
                             "; expected " + allowed};
  failure.headers.emplace_back("Allow", allowed);
  throw HttpError(failure);
}

std::vector<std::string> House::model_names() const {
  std::vector<std::string> names = server->model_names();
  if (names.front().empty()) names.front() = options.model_name;
  return names;
}

std::string House::find_model(const std::string& name) const {
  const std::vector<std::string> names = model_names();
  const auto found = std::ranges::find(names, name);
  if (found == names.begin()) return "";
  if (found != names.end()) return name;
  const bool is_strict = options.strict_model || server->num_models() > 1;
  if (!is_strict || name.empty()) return "";
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  throw HttpError({.status = 404,
                   .type = failure_type(404),
                   .message = "the model '" + name + "' does not exist; expected " + known,
                   .param = "model"});
}

std::string House::shown_model(const std::string& name) const {
  const std::string found = find_model(name);
  return found.empty() ? model_names().front() : found;
}

}  // namespace vitrine::http
