// SPDX-License-Identifier: Apache-2.0
#include "json_values.h"

#include <nlohmann/json.hpp>

#include "runtime.h"
#include "vitrine/core.h"

namespace vitrine::chat {

namespace {

using Json = nlohmann::json;

/// Builds values as the parser reads them: nlohmann's own objects would sort their keys.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Runtime& runtime) : runtime_(runtime) {}

  bool null() override { return add(Value(None())); }
  bool boolean(bool value) override { return add(Value(value)); }
  bool number_integer(int64_t value) override { return add(Value(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return fail("the number " + std::to_string(value) + "; expected one of 64 bits with a sign");
    }
    return add(Value(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) {
      return fail("a whole number of " + std::to_string(text.size()) +
                  " digits; expected one of 64 bits");
    }
    return add(Value(value));
  }
  bool string(std::string& value) override { return add(make_text(runtime_, std::move(value))); }
  bool binary(Json::binary_t&) override { return fail("binary data; expected text"); }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(std::string& value) override {
    levels_.back().key = make_text(runtime_, std::move(value));
    return true;
  }
  bool end_object() override {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    return add(make_dict(runtime_, std::move(level.pairs)));
  }
  bool end_array() override {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    return add(make_list(runtime_, std::move(level.items)));
  }
  bool parse_error(size_t place, const std::string&, const Json::exception&) override {
    return fail("byte " + std::to_string(place) + " that is no valid JSON; expected JSON in UTF-8");
  }

  Value take() { return std::move(result_); }

 private:
  struct Level {
    bool is_object = false;
    Value key;
    std::vector<std::pair<Value, Value>> pairs;
    Values items;
  };

  [[noreturn]] bool fail(const std::string& message) const {
    throw Error(ErrorKind::kBadFile, runtime_.name() + ": found " + message);
  }

  bool open(bool is_object) {
    if (levels_.size() >= static_cast<size_t>(kMaxValueDepth)) {
      fail("brackets more than " + std::to_string(kMaxValueDepth) +
           " levels deep; expected fewer levels");
    }
    levels_.push_back({is_object, {}, {}, {}});
    return true;
  }

  bool add(Value value) {
    runtime_.spend(64);
    if (levels_.empty()) {
      result_ = std::move(value);
    } else if (levels_.back().is_object) {
      levels_.back().pairs.emplace_back(std::move(levels_.back().key), std::move(value));
    } else {
      levels_.back().items.push_back(std::move(value));
    }
    return true;
  }

  Runtime& runtime_;
  std::vector<Level> levels_;
  Value result_;
};

}  // namespace

Value parse_json_value(Runtime& runtime, std::string_view text) {
  Builder builder(runtime);
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace vitrine::chat
