// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <string>

#include "core/registry.h"

namespace vitrine {

namespace {

core::Registry<std::string, speculate::DrafterKind>& drafter_registry() {
  static core::Registry<std::string, speculate::DrafterKind> kinds("drafter");
  return kinds;
}

void require_drafter_option(bool is_good, const std::string& name, const std::string& found,
                            const std::string& expected) {
  if (is_good) return;
  throw Error(ErrorKind::kInvalidArgument,
              "drafter option '" + name + "' is " + found + "; expected " + expected);
}

}  // namespace

bool speculate::register_drafter(const DrafterKind& kind) {
  return drafter_registry().add(std::string(kind.name), kind);
}

std::vector<std::string> drafter_names() {
  std::vector<std::string> names;
  for (const speculate::DrafterKind& kind : drafter_registry().entries()) {
    names.emplace_back(kind.name);
  }
  return names;
}

std::unique_ptr<Drafter> make_drafter(std::string_view name, const DrafterOptions& options) {
  const speculate::DrafterKind* kind = drafter_registry().find(name);
  if (kind == nullptr) {
    std::string known;
    for (const std::string& each : drafter_names()) known += (known.empty() ? "" : ", ") + each;
    throw Error(ErrorKind::kInvalidArgument,
                "'" + std::string(name) + "' is no drafter; expected one of: " + known);
  }
  require_drafter_option(options.min_match >= 1 && options.min_match <= 16, "min_match",
                         std::to_string(options.min_match), "1 to 16 tokens");
  require_drafter_option(options.min_probability >= 0 && options.min_probability <= 1,
                         "min_probability", std::to_string(options.min_probability), "0 to 1");
  require_drafter_option(options.shared_tokens >= 0 && options.shared_tokens <= int64_t{1} << 28,
                         "shared_tokens", std::to_string(options.shared_tokens),
                         "0 to 268435456 tokens");
  require_drafter_option(options.max_scopes >= 1, "max_scopes", std::to_string(options.max_scopes),
                         "at least 1");
  return kind->make(options);
}

}  // namespace vitrine
