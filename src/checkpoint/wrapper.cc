// SPDX-License-Identifier: Apache-2.0
#include "wrapper.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "family.h"
#include "family_defaults.h"
#include "fields.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr std::string_view kTextConfig = "text_config";

/// A wrapper's type, and the family of the text model in it.
struct FoundWrapper {
  const Family* family = nullptr;
  const Wrapper* wrapper = nullptr;
};

FoundWrapper find_wrapper(std::string_view type) {
  for (const Family* family : all_families()) {
    const auto found = std::ranges::find(family->wrappers, type, &Wrapper::type);
    if (found != family->wrappers.end()) return {family, &*found};
  }
  return {};
}

struct Rename {
  std::string_view from, to;
};
constexpr Rename kRenames[] = {
    {"model.language_model.", "model."},
    {"language_model.model.", "model."},
    {"language_model.lm_head.", "lm_head."},
};

}  // namespace

TextConfig text_config(nlohmann::json config, const std::string& place) {
  const Fields fields(config, place);
  const std::string type = fields.string("model_type").value_or("");
  const auto text = fields.object(kTextConfig);
  const auto [family, wrapper] = find_wrapper(type);
  if (!text) {
    // A config of a text model may have the wrapper's name; what is neither lacks its sizes.
    if (wrapper != nullptr && fields.find("hidden_size") == nullptr) {
      fields.bad(kTextConfig, "the fields of the text model in " + quote_text(type));
    }
    add_family_defaults(config, /*is_wrapped=*/false);
    return {std::move(config), place};
  }
  TextConfig result{*fields.find(kTextConfig), place + ": text_config"};
  if (text->find("model_type") == nullptr) {
    result.fields["model_type"] =
        family == nullptr ? type + "_text" : std::string(family->model_types.front());
  }
  for (const char* name : {"dtype", "torch_dtype", "bos_token_id", "architectures"}) {
    const nlohmann::json* own = text->find(name);
    const nlohmann::json* outer = fields.find(name);
    if (own == nullptr && outer != nullptr) result.fields[name] = *outer;
  }
  // Either may name ends that the other does not.
  auto ends = nlohmann::json::array();
  for (const Fields* part : {&*text, &fields}) {
    const nlohmann::json* ids = part->find("eos_token_id");
    if (ids == nullptr) continue;
    for (const nlohmann::json& id : ids->is_array() ? *ids : nlohmann::json::array({*ids})) {
      ends.push_back(id);
    }
  }
  if (!ends.empty()) result.fields["eos_token_id"] = std::move(ends);
  // The head is the wrapper's, and so is the word on it.
  constexpr const char* kTied = "tie_word_embeddings";
  if (const nlohmann::json* outer = fields.find(kTied)) {
    result.fields[kTied] = *outer;
  } else if (text->find(kTied) == nullptr && wrapper != nullptr) {
    result.fields[kTied] = wrapper->is_tied;
  }
  add_family_defaults(result.fields, /*is_wrapped=*/true);
  return result;
}

std::optional<Fields> quantization_fields(const Fields& config) {
  constexpr std::string_view kQuantization = "quantization_config";
  auto found = config.object(kQuantization);
  if (found) return found;
  const auto text = config.object(kTextConfig);
  return text ? text->object(kQuantization) : std::nullopt;
}

void rename_text_tensors(std::vector<TensorInfo>& tensors, const std::vector<std::string>& paths) {
  bool any = false;
  for (TensorInfo& info : tensors) {
    for (const Rename& rename : kRenames) {
      if (!info.name.starts_with(rename.from)) continue;
      info.name = std::string(rename.to) + info.name.substr(rename.from.size());
      any = true;
      break;
    }
  }
  if (!any) return;
  std::set<std::string_view> names;
  for (const TensorInfo& info : tensors) {
    if (names.insert(info.name).second) continue;
    throw_bad_file(paths[static_cast<size_t>(info.file_index)] + ": holds the tensor " +
                   quote_text(info.name) + " of the text model under two names; expected it once");
  }
}

}  // namespace vitrine::checkpoint
