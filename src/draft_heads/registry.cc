// SPDX-License-Identifier: Apache-2.0
#include "core/registry.h"

#include <string>

#include "draft_heads/head_folder.h"
#include "draft_heads/head_kind.h"

namespace vitrine {

namespace {

core::Registry<std::string, draft_heads::HeadKind>& heads_registry() {
  static core::Registry<std::string, draft_heads::HeadKind> kinds("draft heads");
  return kinds;
}

}  // namespace

bool draft_heads::register_heads(const HeadKind& kind) {
  return heads_registry().add(std::string(kind.name), kind);
}

std::vector<std::string> draft_heads::head_names() {
  std::vector<std::string> names;
  for (const draft_heads::HeadKind& kind : heads_registry().entries()) {
    names.emplace_back(kind.name);
  }
  return names;
}

std::unique_ptr<draft_heads::HeadDrafter> draft_heads::make_heads(std::string_view name,
                                                                  const std::string& heads,
                                                                  const std::string& model,
                                                                  const std::vector<int>& layers) {
  const HeadKind* kind = heads_registry().find(name);
  if (kind == nullptr) {
    std::string known;
    for (const std::string& each : head_names()) known += (known.empty() ? "" : ", ") + each;
    throw Error(ErrorKind::kInvalidArgument,
                "'" + std::string(name) + "' is no kind of draft heads; expected one of: " + known);
  }
  return kind->make({open_heads(heads), open_target(model), layers});
}

}  // namespace vitrine
