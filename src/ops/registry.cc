#include <map>
#include <string>

#include "ops/op.h"

namespace vitrine::ops {

namespace {
std::map<std::string, OpDefinition, std::less<>>& registry() {
  static std::map<std::string, OpDefinition, std::less<>> definitions;
  return definitions;
}
}  // namespace

bool register_op(const OpDefinition& definition) {
  return registry().emplace(std::string(definition.type), definition).second;
}

const OpDefinition& find_op(std::string_view type) {
  auto found = registry().find(type);
  if (found == registry().end()) {
    throw Error(ErrorKind::kInternal, "op '" + std::string(type) + "' is not registered");
  }
  return found->second;
}

double OpNode::attribute(std::string_view name) const {
  auto found = attributes.find(std::string(name));
  if (found == attributes.end()) {
    throw Error(ErrorKind::kInternal,
                "op '" + type + "' lacks its attribute '" + std::string(name) + "'");
  }
  return found->second;
}

double OpNode::attribute(std::string_view name, double fallback) const {
  auto found = attributes.find(std::string(name));
  return found == attributes.end() ? fallback : found->second;
}

const std::string& OpNode::weight(std::string_view role) const {
  static const std::string none;
  auto found = weights.find(std::string(role));
  return found == weights.end() ? none : found->second;
}

}  // namespace vitrine::ops
