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

}  // namespace vitrine::ops
