// SPDX-License-Identifier: Apache-2.0
#include "http/openapi_document.h"

#include <cctype>

#include "http/openapi_outline.json.h"
#include "vitrine/version.h"

namespace vitrine::http {

namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

/// Whether a described path is one that the route answers.
bool is_path_of(const Route& route, std::string_view path) {
  std::string_view pattern = route.path;
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.starts_with(std::string(pattern) + "{");
}

/// "GET /v1/models/{model}" as "get_v1_models_model".
std::string operation_id(std::string_view method, std::string_view path) {
  std::string id(method);
  for (const char c : path) {
    const bool is_word = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_word) {
      id += c;
    } else if (id.back() != '_') {
      id += '_';
    }
  }
  while (id.ends_with('_')) id.pop_back();
  return lower_case(id);
}

/// Writes the document, family by family.
class DocumentWriter {
 public:
  explicit DocumentWriter(bool has_keys)
      : has_keys_(has_keys), outline_(Json::parse(kOpenapiOutlineJson)) {
    document_ = outline_["document"];
    document_["info"]["version"] = VITRINE_VERSION;
  }

  void add(const Route& route) {
    const Json& family = family_of(route);
    const Json& paths = family["paths"];
    bool is_described = false;
    for (const auto& [path, item] : paths.items()) {
      if (!is_path_of(route, path)) continue;
      const Json& described = item.is_string() ? paths[item.get<std::string>()] : item;
      const auto found = described.find(lower_case(route.method));
      if (found == described.end()) continue;
      add_operation(route, family, path, *found);
      const auto parameters = described.find("parameters");
      if (parameters != described.end()) document_["paths"][path]["parameters"] = *parameters;
      is_described = true;
    }
    if (!is_described) add_operation(route, family, route.path, Json::object());
  }

  Json take() { return std::move(document_); }

 private:
  /// Reads a family's description once, and takes what others refer to.
  const Json& family_of(const Route& route) {
    const auto [place, is_new] = families_.try_emplace(route.description.data());
    if (!is_new) return place->second;
    place->second = Json::parse(route.description);
    for (const char* part : {"schemas", "responses"}) {
      Json& all = document_["components"][part];
      for (const auto& [name, component] : place->second[part].items()) {
        if (all.contains(name)) {
          throw Error(ErrorKind::kInternal, "two families of routes describe '" + name +
                                                "'; expected each name in one of them");
        }
        all[name] = component;
      }
    }
    return place->second;
  }

  void add_operation(const Route& route, const Json& family, const std::string& path,
                     const Json& described) {
    Json operation = {{"operationId", operation_id(route.method, path)}};
    if (family.contains("tag")) operation["tags"] = Json::array({family["tag"]});
    operation.update(described);
    operation.erase("failures");
    operation["security"] = security_of(route);
    const std::string failure = family.value("failure", "Error");
    std::vector<std::string> statuses = statuses_of(route);
    for (const Json& each : described.value("failures", Json::array())) statuses.push_back(each);
    for (const std::string& status : statuses) {
      Json& responses = operation["responses"];
      if (!responses.contains(status)) responses[status] = failure_response(failure, status);
    }
    document_["paths"][path][lower_case(route.method)] = std::move(operation);
  }

  /// A key that is sent where none is wanted does no harm.
  Json security_of(const Route& route) const {
    if (route.access == Access::kOpen) return Json::array();
    Json ways = Json::array({{{"bearer", Json::array()}}, {{"key", Json::array()}}});
    if (!has_keys_) ways.insert(ways.begin(), Json::object());
    return ways;
  }

  /// The statuses of failures that a route of its kind may have.
  static std::vector<std::string> statuses_of(const Route& route) {
    std::vector<std::string> statuses = {"400", "403", "408", "431", "500", "505"};
    if (route.access != Access::kOpen) statuses.emplace_back("401");
    if (route.access == Access::kKey || route.access == Access::kAuditor) {
      statuses.emplace_back("503");
    }
    if (std::string_view(route.method) == "POST") {
      statuses.insert(statuses.end(), {"413", "415"});
    }
    return statuses;
  }

  /// Refers to what is told with a status, which all operations of a family share.
  Json failure_response(const std::string& failure, const std::string& status) {
    const std::string name = failure + status;
    Json& responses = document_["components"]["responses"];
    if (!responses.contains(name)) {
      Json response = outline_["failures"][status];
      response["content"]["application/json"]["schema"]["$ref"] = "#/components/schemas/" + failure;
      responses[name] = std::move(response);
    }
    return {{"$ref", "#/components/responses/" + name}};
  }

  const bool has_keys_;
  Json outline_, document_;
  std::map<const char*, Json> families_;  // by where their descriptions begin
};

}  // namespace

Json openapi_document(const std::vector<Route>& routes, bool has_keys) {
  DocumentWriter writer(has_keys);
  for (const Route& route : routes) writer.add(route);
  return writer.take();
}

}  // namespace vitrine::http
