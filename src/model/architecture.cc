// SPDX-License-Identifier: Apache-2.0
#include "model/architecture.h"

#include "core/registry.h"

namespace vitrine::model {

namespace {
core::Registry<std::string, Architecture>& registry() {
  static core::Registry<std::string, Architecture> architectures("architecture");
  return architectures;
}
}  // namespace

bool register_architecture(const Architecture& architecture) {
  return registry().add(std::string(architecture.model_type), architecture);
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const Architecture& architecture : registry().entries()) {
    names.emplace_back(architecture.model_type);
  }
  return names;
}

const Architecture& find_architecture(const std::string& model_type, const std::string& file) {
  if (const Architecture* found = registry().find(model_type)) return *found;
  std::string known;
  for (const std::string& name : architecture_names()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorKind::kUnsupported,
              file + ": field 'model_type' is '" + model_type + "'; expected one of " + known);
}

}  // namespace vitrine::model
