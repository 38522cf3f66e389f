// SPDX-License-Identifier: Apache-2.0
// The architectures that GGUF files name, as families bring them.
#include <map>

#include "family.h"
#include "gguf_model.h"

namespace vitrine::checkpoint {
namespace {

/// Whether forms of a name are there for files with experts, and for files without.
struct Kinds {
  bool with = false, without = false;
};

std::string names_of(const std::map<std::string_view, Kinds>& known) {
  std::string names;
  for (const auto& [name, kinds] : known) {
    names += (names.empty() ? "" : ", ") + std::string(name);
    if (kinds.with != kinds.without) {
      names += kinds.with ? " (with experts)" : " (without experts)";
    }
  }
  return names;
}

}  // namespace

const GgufArchitecture& find_gguf_architecture(const GgufMetadata& metadata,
                                               const std::vector<TensorInfo>& tensors) {
  constexpr std::string_view kKey = "general.architecture";
  const std::string name = metadata.required_string(kKey);
  const std::string count_key = name + ".expert_count";
  const bool has_experts = metadata.integer(count_key, 0, kMaxExperts).value_or(0) > 0;
  std::map<std::string_view, Kinds> known;
  for (const Family* family : all_families()) {
    for (const GgufArchitecture& form : family->gguf_forms) {
      if (form.name == name && form.has_experts == has_experts &&
          (!form.has_latents || fits_scores(form, metadata, tensors))) {
        return form;
      }
      (form.has_experts ? known[form.name].with : known[form.name].without) = true;
    }
  }
  if (known.contains(name)) {
    metadata.unsupported(count_key, has_experts
                                        ? "0: models of this architecture have no experts"
                                        : "the number of experts, which this architecture has");
  }
  metadata.unsupported(kKey, "one of " + names_of(known));
}

}  // namespace vitrine::checkpoint
