// SPDX-License-Identifier: Apache-2.0
#include "core/json_text.h"

#include <algorithm>
#include <set>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {
namespace {

[[noreturn]] void throw_bad_file(const std::string& message) {
  throw Error(ErrorKind::kBadFile, message);
}

}  // namespace

std::string quote_text(std::string_view text) {
  constexpr size_t kMaxBytes = 120;
  constexpr char kHex[] = "0123456789abcdef";
  std::string result = "'";
  for (size_t i = 0; i < text.size() && i < kMaxBytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f || byte == '\'' || byte == '\\') {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      result += text[i];
    }
  }
  return result + (text.size() > kMaxBytes ? "…'" : "'");
}

std::string found_text(const nlohmann::json& value) {
  if (value.is_string()) return quote_text(value.get_ref<const std::string&>());
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return value.dump();
}

nlohmann::json parse_json_object(std::string_view text, const std::string& file,
                                 size_t max_values) {
  using Json = nlohmann::json;
  constexpr int kMaxDepth = 64;  // dump() and comparisons recurse: a deep value would end the stack
  std::vector<std::set<std::string>> keys_of_open_objects;
  size_t num_values = 0;
  const auto guard = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) {
      throw_bad_file(file + ": JSON is nested deeper than " + std::to_string(kMaxDepth) +
                     " levels; expected a plain object");
    }
    if (event != Json::parse_event_t::key && ++num_values > max_values) {
      throw_bad_file(file + ": JSON holds more than " + std::to_string(max_values) +
                     " values; expected fewer");
    }
    if (event == Json::parse_event_t::object_start) {
      keys_of_open_objects.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys_of_open_objects.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_of_open_objects.back().insert(key).second) {
        throw_bad_file(file + ": the key " + quote_text(key) +
                       " stands twice in one object; expected it once");
      }
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), guard);
  } catch (const Json::parse_error& error) {
    const size_t position = std::min<size_t>(error.byte, text.size());  // the end counts one more
    throw_bad_file(file + ": invalid JSON at byte " + std::to_string(position) + " of " +
                   std::to_string(text.size()) + "; expected a JSON object");
  } catch (const Json::exception&) {  // a number that no double holds
    throw_bad_file(file + ": JSON holds a number out of range; expected finite numbers");
  }
  if (!json.is_object()) {
    throw_bad_file(file + ": found " + found_text(json) + " at the top; expected a JSON object");
  }
  return json;
}

}  // namespace vitrine
