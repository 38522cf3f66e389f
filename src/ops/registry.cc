// SPDX-License-Identifier: Apache-2.0
#include "core/registry.h"

#include "ops/op.h"

namespace vitrine::ops {

namespace {
core::Registry<std::string, OpDefinition>& registry() {
  static core::Registry<std::string, OpDefinition> definitions("op");
  return definitions;
}
}  // namespace

bool register_op(const OpDefinition& definition) {
  return registry().add(std::string(definition.type), definition);
}

const OpDefinition& find_op(std::string_view type) {
  if (const OpDefinition* found = registry().find(type)) return *found;
  throw Error(ErrorKind::kInternal, "op '" + std::string(type) + "' is not registered");
}

}  // namespace vitrine::ops
