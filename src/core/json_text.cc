// SPDX-License-Identifier: Apache-2.0
#include "core/json_text.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {
namespace {

[[noreturn]] void throw_bad_file(const std::string& message) {
  throw Error(ErrorKind::kBadFile, message);
}

/// Goes through a text and throws what parse_json_object() throws.
class JsonCheck : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonCheck(std::string_view text, const std::string& file, size_t max_values,
            size_t max_keys = std::numeric_limits<size_t>::max())
      : text_(text), file_(file), max_values_(max_values), max_keys_(max_keys) {}

  bool null() override { return count_value(); }
  bool boolean(bool) override { return count_value(); }
  bool number_integer(number_integer_t) override { return count_value(); }
  bool number_unsigned(number_unsigned_t) override { return count_value(); }
  bool number_float(number_float_t, const string_t&) override { return count_value(); }
  bool string(string_t&) override { return count_value(); }
  bool binary(binary_t&) override { return count_value(); }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    check_depth();
    if (keys_.back().size() >= max_keys_) {
      throw_bad_file(file_ + ": an object has more than " + std::to_string(max_keys_) +
                     " keys; expected fewer");
    }
    if (keys_.back().insert(name).second) return true;
    throw_bad_file(file_ + ": the key " + quote_text(name) +
                   " stands twice in one object; expected it once");
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    constexpr int kOutOfRange = 406;  // a number that no double holds
    if (error.id == kOutOfRange) {
      throw_bad_file(file_ + ": JSON holds a number out of range; expected finite numbers");
    }
    position = std::min(position, text_.size());  // the end counts one more
    throw_bad_file(file_ + ": invalid JSON at byte " + std::to_string(position) + " of " +
                   std::to_string(text_.size()) + "; expected a JSON object");
  }

 private:
  static constexpr size_t kMaxDepth = 64;  // dump() and comparisons recurse

  void check_depth() const {
    if (keys_.size() <= kMaxDepth) return;
    throw_bad_file(file_ + ": JSON is nested deeper than " + std::to_string(kMaxDepth) +
                   " levels; expected a plain object");
  }
  bool count_value() {
    check_depth();
    if (++num_values_ <= max_values_) return true;
    throw_bad_file(file_ + ": JSON holds more than " + std::to_string(max_values_) +
                   " values; expected fewer");
  }
  bool open() {
    count_value();
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return count_value();
  }

  const std::string_view text_;
  const std::string& file_;
  const size_t max_values_, max_keys_;
  size_t num_values_ = 0;
  std::vector<std::set<std::string>> keys_;  // of open objects; of open lists none
};

/// Goes through a text and counts levels and keys.
class BoundsCheck : public nlohmann::json_sax<nlohmann::json> {
 public:
  BoundsCheck(size_t max_levels, size_t max_keys) : max_levels_(max_levels), max_keys_(max_keys) {}
  JsonBounds found = JsonBounds::kFits;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t&) override {
    return ++keys_.back() <= max_keys_ || refuse(JsonBounds::kNoJson);
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return refuse(JsonBounds::kNoJson);
  }

 private:
  bool refuse(JsonBounds why) {
    if (found == JsonBounds::kFits) found = why;
    return false;
  }
  bool open() {
    keys_.push_back(0);
    return keys_.size() <= max_levels_ || refuse(JsonBounds::kTooDeep);
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const size_t max_levels_, max_keys_;
  std::vector<size_t> keys_;  // of open objects
};

}  // namespace

void check_json(std::string_view text, const std::string& file, size_t max_values,
                size_t max_keys) {
  JsonCheck check(text, file, max_values, max_keys);
  nlohmann::json::sax_parse(text.begin(), text.end(), &check);
}

JsonBounds json_bounds(std::string_view text, size_t max_levels, size_t max_keys) {
  BoundsCheck check(max_levels, max_keys);
  nlohmann::json::sax_parse(text.begin(), text.end(), &check);
  return check.found;
}

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
  JsonCheck check(text, file, max_values);
  nlohmann::json::sax_parse(text.begin(), text.end(), &check);
  // A second time, since nlohmann looks through all of a list behind each of its objects where
  // something watches it.
  nlohmann::json json = nlohmann::json::parse(text.begin(), text.end());
  if (!json.is_object()) {
    throw_bad_file(file + ": found " + found_text(json) + " at the top; expected a JSON object");
  }
  return json;
}

}  // namespace vitrine
