// SPDX-License-Identifier: Apache-2.0
#include "core/registry.h"

#include "round_to_nearest.h"

namespace vitrine {
namespace quant {
namespace {

core::Registry<std::string, QuantMethod>& registered_methods() {
  static core::Registry<std::string, QuantMethod> methods("scheme");
  return methods;
}

}  // namespace

QuantMethodRegistration::QuantMethodRegistration(const QuantMethod& method) {
  registered_methods().add(method.name, method);
}

}  // namespace quant

const QuantMethod& find_quant_method(std::string_view name) {
  if (const QuantMethod* found = quant::registered_methods().find(name)) return *found;
  std::string known;
  for (const QuantMethod& method : quant_methods()) {
    known += (known.empty() ? "" : ", ") + method.name;
  }
  throw Error(ErrorKind::kInvalidArgument,
              "scheme '" + std::string(name) + "' is unknown; expected one of: " + known);
}

std::vector<QuantMethod> quant_methods() { return quant::registered_methods().entries(); }

}  // namespace vitrine
