// SPDX-License-Identifier: Apache-2.0
#include "model/architecture.h"

#include "core/registry.h"

namespace vitrine::model {

namespace {

struct Named {
  std::string model_type;
  Architecture architecture;
};

core::Registry<std::string, Named>& registry() {
  static core::Registry<std::string, Named> architectures("architecture");
  return architectures;
}

}  // namespace

bool register_architecture(const Architecture& architecture) {
  bool is_new = checkpoint::register_family(architecture.family);
  for (const std::string_view name : architecture.family.model_types) {
    is_new &= registry().add(std::string(name), {std::string(name), architecture});
  }
  return is_new;
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const Named& named : registry().entries()) names.push_back(named.model_type);
  return names;
}

const Architecture* lookup_architecture(std::string_view model_type) {
  const Named* found = registry().find(model_type);
  return found == nullptr ? nullptr : &found->architecture;
}

const Architecture& find_architecture(const std::string& model_type, const std::string& file) {
  if (const Architecture* found = lookup_architecture(model_type)) return *found;
  std::string known;
  for (const std::string& name : architecture_names()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorKind::kUnsupported,
              file + ": field 'model_type' is '" + model_type + "'; expected one of " + known);
}

ops::Graph build_graph(const Checkpoint& checkpoint, const ModelConfig& config) {
  return find_architecture(config.model_type, checkpoint.config_name()).build(config);
}

}  // namespace vitrine::model
