// SPDX-License-Identifier: Apache-2.0
#include "serve/policy.h"

#include "core/registry.h"
#include "vitrine/serve.h"

namespace vitrine {

namespace serve {

namespace {

core::Registry<std::string, PolicyKind>& registry() {
  static core::Registry<std::string, PolicyKind> kinds("serving policy");
  return kinds;
}

}  // namespace

bool register_policy(const PolicyKind& kind) {
  return registry().add(std::string(kind.name), kind);
}

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (const PolicyKind* found = registry().find(name)) return found->make();
  std::string known;
  for (const std::string& each : serve_policy_names()) known += (known.empty() ? "" : ", ") + each;
  throw Error(ErrorKind::kInvalidArgument,
              "server option 'policy' is '" + std::string(name) + "'; expected one of " + known);
}

}  // namespace serve

std::vector<std::string> serve_policy_names() {
  std::vector<std::string> names;
  for (const serve::PolicyKind& kind : serve::registry().entries()) names.emplace_back(kind.name);
  return names;
}

}  // namespace vitrine
