// SPDX-License-Identifier: Apache-2.0
#include "family.h"

#include <algorithm>
#include <utility>

#include "core/registry.h"

namespace vitrine::checkpoint {
namespace {

core::Registry<std::string, std::shared_ptr<const Family>>& registry() {
  static core::Registry<std::string, std::shared_ptr<const Family>> families("family of models");
  return families;
}

}  // namespace

bool register_family(Family family) {
  for (GgufArchitecture& form : family.gguf_forms) form.model_type = family.model_types.front();
  const auto shared = std::make_shared<const Family>(std::move(family));
  bool is_new = true;
  for (const std::string_view name : shared->model_types) {
    is_new &= registry().add(std::string(name), shared);
  }
  return is_new;
}

const Family* find_family(std::string_view model_type) {
  const auto* const found = registry().find(model_type);
  return found == nullptr ? nullptr : found->get();
}

std::vector<const Family*> all_families() {
  std::vector<const Family*> families;
  for (const auto& family : registry().entries()) {
    if (std::ranges::find(families, family.get()) == families.end()) {
      families.push_back(family.get());
    }
  }
  return families;
}

}  // namespace vitrine::checkpoint
