// SPDX-License-Identifier: Apache-2.0
#include "wrapper.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "family_defaults.h"
#include "fields.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr std::string_view kTextConfig = "text_config";

/// Types of wrappers, none of which is a text model's, and of the text models that they have where
/// the text part does not say.
struct Wrapper {
  std::string_view type, text_type;
  bool is_tied;  ///< where neither says whether the head is the embedding
};
constexpr Wrapper kWrappers[] = {
    {"gemma4", "gemma4_text", true},    {"kimi_k25", "deepseek_v3", true},
    {"llama4", "llama4_text", false},   {"mistral3", "mistral", true},
    {"qwen3_5", "qwen3_5_text", false}, {"qwen3_5_moe", "qwen3_5_moe_text", false},
};

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
  const Wrapper* const wrapper = std::ranges::find(kWrappers, type, &Wrapper::type);
  if (!text) {
    // A config of a text model may have the wrapper's name; what is neither lacks its sizes.
    if (wrapper != std::end(kWrappers) && fields.find("hidden_size") == nullptr) {
      fields.bad(kTextConfig, "the fields of the text model in " + quote_text(type));
    }
    add_family_defaults(config, /*is_wrapped=*/false);
    return {std::move(config), place};
  }
  TextConfig result{*fields.find(kTextConfig), place + ": text_config"};
  if (text->find("model_type") == nullptr) {
    result.fields["model_type"] =
        wrapper == std::end(kWrappers) ? type + "_text" : std::string(wrapper->text_type);
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
  } else if (text->find(kTied) == nullptr && wrapper != std::end(kWrappers)) {
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
