#include "model/architecture.h"

#include <map>

namespace vitrine::model {

namespace {
std::map<std::string, Architecture, std::less<>>& registry() {
  static std::map<std::string, Architecture, std::less<>> architectures;
  return architectures;
}
}  // namespace

bool register_architecture(const Architecture& architecture) {
  return registry().emplace(std::string(architecture.model_type), architecture).second;
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const auto& [name, architecture] : registry()) names.push_back(name);
  return names;
}

const Architecture& find_architecture(const std::string& model_type, const std::string& file) {
  auto found = registry().find(model_type);
  if (found != registry().end()) return found->second;
  std::string known;
  for (const std::string& name : architecture_names()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorKind::kUnsupported,
              file + ": field 'model_type' is '" + model_type + "'; expected one of " + known);
}

}  // namespace vitrine::model
