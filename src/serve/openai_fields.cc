// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_fields.h"

#include <cmath>

namespace vitrine::serve {

void refuse_field(std::string_view field, const nlohmann::json& found, std::string_view expected) {
  constexpr size_t kMostShown = 60;
  std::string shown = found.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "…";
  throw Error(ErrorKind::kInvalidArgument,
              "'" + std::string(field) + "' is " + shown + "; expected " + std::string(expected));
}

const nlohmann::json* Fields::find(const char* name) const {
  const auto found = body_.find(name);
  return found == body_.end() || found->is_null() ? nullptr : &*found;
}

void Fields::read(const char* name, std::string& value) const {
  const nlohmann::json* found = find(name);
  if (found == nullptr) return;
  if (!found->is_string()) refuse_field(name, *found, "a text");
  value = found->get<std::string>();
}

void Fields::read(const char* name, bool& value) const {
  const nlohmann::json* found = find(name);
  if (found == nullptr) return;
  if (!found->is_boolean()) refuse_field(name, *found, "true or false");
  value = found->get<bool>();
}

void Fields::read(const char* name, int& value, int64_t least, int64_t most) const {
  const nlohmann::json* found = find(name);
  if (found == nullptr) return;
  // Some clients write whole numbers as 5.0.
  const bool is_whole = found->is_number() && std::isfinite(found->get<double>()) &&
                        found->get<double>() == std::floor(found->get<double>());
  if (!is_whole || found->get<double>() < static_cast<double>(least) ||
      found->get<double>() > static_cast<double>(most)) {
    refuse_field(name, *found,
                 "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  value = static_cast<int>(found->get<double>());
}

void Fields::read(const char* name, float& value, double least, double most) const {
  const nlohmann::json* found = find(name);
  if (found == nullptr) return;
  if (!found->is_number() || !(found->get<double>() >= least && found->get<double>() <= most)) {
    refuse_field(
        name, *found,
        "a number from " + nlohmann::json(least).dump() + " to " + nlohmann::json(most).dump());
  }
  value = found->get<float>();
}

void Fields::read_seed(const char* name, uint64_t& value) const {
  const nlohmann::json* found = find(name);
  if (found == nullptr) return;
  if (found->is_number_unsigned()) {
    value = found->get<uint64_t>();
  } else if (found->is_number_integer()) {
    value = static_cast<uint64_t>(found->get<int64_t>());
  } else {
    refuse_field(name, *found, "a whole number of 64 bits");
  }
}

void Fields::read_texts(const char* name, std::vector<std::string>& texts, size_t most) const {
  const nlohmann::json* found = find(name);
  if (found == nullptr) return;
  const std::string expected =
      "a text, or a list of up to " + std::to_string(most) + " texts, none of them empty";
  const auto add = [&](const nlohmann::json& text) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      refuse_field(name, *found, expected);
    }
    texts.push_back(text.get<std::string>());
  };
  if (found->is_array() && found->size() <= most) {
    for (const nlohmann::json& text : *found) add(text);
  } else {
    add(*found);
  }
}

}  // namespace vitrine::serve
