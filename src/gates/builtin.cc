// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gates/builtin.h"
#include "vitrine/gates.h"

namespace vitrine {

std::vector<std::string> builtin_gates() {
  std::vector<std::string> names;
  for (const auto& [name, text] : gates::kBuiltinGates) names.emplace_back(name);
  return names;
}

std::string builtin_gate_text(const std::string& name) {
  const auto* found = std::ranges::find_if(gates::kBuiltinGates,
                                           [&](const auto& gate) { return gate.first == name; });
  if (found != gates::kBuiltinGates.end()) return std::string(found->second);
  std::string names;
  for (const std::string& one : builtin_gates()) names += (names.empty() ? "" : ", ") + one;
  throw Error(ErrorKind::kInvalidArgument,
              "'" + name + "': there is no built-in gate of that name; expected one of " + names);
}

}  // namespace vitrine
