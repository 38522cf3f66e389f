// SPDX-License-Identifier: Apache-2.0
#include "family_defaults.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "family.h"

namespace vitrine::checkpoint {
namespace {

constexpr std::array kSizes = {"vocab_size", "hidden_size", "num_hidden_layers",
                               "num_attention_heads"};

/// Spellings of one key, any of which says it.
using Spellings = std::array<std::string_view, 4>;
constexpr Spellings kSpellings[] = {
    {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"},
    {"num_experts_per_tok", "moe_k"},
    {"n_shared_experts", "moe_num_shared_experts"},
    {"tie_word_embeddings", "tie_embedding"},
    {"attention_bias", "use_bias"},
    {"partial_rotary_factor", "rotary_dim"},
};

bool has_any_spelling(const nlohmann::json& fields, std::string_view key) {
  if (fields.contains(key)) return true;
  return std::ranges::any_of(kSpellings, [&](const Spellings& spellings) {
    return std::ranges::find(spellings, key) != spellings.end() &&
           std::ranges::any_of(spellings, [&](std::string_view other) {
             return !other.empty() && fields.contains(other);
           });
  });
}

bool has_object(const nlohmann::json& fields, const char* key) {
  const auto found = fields.find(key);
  return found != fields.end() && found->is_object() && !found->empty();
}

/// Returns whether a key stands in an object that says how heads are rotated.
bool is_in_rope_object(const nlohmann::json& fields, std::string_view key) {
  return std::ranges::any_of(std::array{"rope_scaling", "rope_parameters"},
                             [&](const char* object) {
                               return has_object(fields, object) && fields[object].contains(key);
                             });
}

bool is_said(const nlohmann::json& fields, std::string_view key) {
  if (key == "rope_parameters") {  // an object that is null is as one that is absent
    return has_object(fields, "rope_parameters") || has_object(fields, "rope_scaling");
  }
  return has_any_spelling(fields, key) || is_in_rope_object(fields, key);
}

/// Returns the defaults of the family that `fields` are of; an empty object where none is known.
nlohmann::json defaults_of(const nlohmann::json& fields) {
  const auto type = fields.find("model_type");
  if (type == fields.end() || !type->is_string()) return nlohmann::json::object();
  const Family* family = find_family(type->get_ref<const std::string&>());
  return nlohmann::json::parse(family == nullptr ? "{}" : family->defaults);
}

}  // namespace

std::vector<std::string> absent_keys(const nlohmann::json& fields) {
  std::vector<std::string> keys;
  const nlohmann::json defaults = defaults_of(fields);
  for (const auto& entry : defaults.items()) {
    if (!is_said(fields, entry.key())) keys.push_back(entry.key());
  }
  return keys;
}

void add_family_defaults(nlohmann::json& fields, bool is_wrapped) {
  const nlohmann::json defaults = defaults_of(fields);
  for (const std::string& key : absent_keys(fields)) {
    const bool is_size = std::ranges::find(kSizes, key) != kSizes.end();
    if (is_wrapped || !is_size) fields[key] = defaults[key];
  }
}

}  // namespace vitrine::checkpoint
