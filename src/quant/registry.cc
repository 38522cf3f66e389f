#include <map>

#include "round_to_nearest.h"

namespace vitrine {
namespace quant {
namespace {

// Filled by static initialisers before main, only read afterwards: no lock.
std::map<std::string, QuantMethod, std::less<>>& registered_methods() {
  static std::map<std::string, QuantMethod, std::less<>> methods;
  return methods;
}

}  // namespace

QuantMethodRegistration::QuantMethodRegistration(QuantMethod method) {
  std::string name = method.name;
  registered_methods().emplace(std::move(name), std::move(method));
}

}  // namespace quant

const QuantMethod& find_quant_method(std::string_view name) {
  const auto& methods = quant::registered_methods();
  if (auto found = methods.find(name); found != methods.end()) return found->second;
  std::string known;
  for (const auto& [known_name, method] : methods)
    known += (known.empty() ? "" : ", ") + known_name;
  throw Error(ErrorKind::kInvalidArgument,
              "scheme '" + std::string(name) + "' is unknown; expected one of: " + known);
}

std::vector<QuantMethod> quant_methods() {
  std::vector<QuantMethod> methods;
  for (const auto& [name, method] : quant::registered_methods()) methods.push_back(method);
  return methods;
}

}  // namespace vitrine
