// SPDX-License-Identifier: Apache-2.0
// Where a reading of a JSON text stands, in words.
#include "json_machine.h"
#include "state_text.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxJsonText = 160;  // of an expression
constexpr size_t kMaxReadingKeys = 6;

/// Names that the schema has, as "'a', 'b', …".
class KeyList {
 public:
  void add(std::string_view name) {
    if (count_ < kMaxReadingKeys)
      out_ += (count_ > 0 ? ", '" : "'") + printable_utf8(name, 64) + "'";
    if (count_++ == kMaxReadingKeys) out_ += ", …";
  }
  bool is_empty() const { return count_ == 0; }
  const std::string& text() const { return out_; }

 private:
  std::string out_;
  size_t count_ = 0;
};

}  // namespace

std::string JsonMachine::container_reading(const Frame& frame) const {
  if (frame.joined != nullptr) return "";
  if (!frame.is_object) {
    const ArrayShape& shape = grammar_.array(frame.shape);
    if (frame.count >= shape.min) return "";
    return "; the array needs " + std::to_string(shape.min) + " items";
  }
  const ObjectShape& shape = grammar_.object(frame.shape);
  KeyList missing;
  for (size_t i = 0; i < shape.named.size(); ++i) {
    const bool is_there = frame.seen != nullptr && (frame.seen[i / 64] >> (i % 64) & 1) != 0;
    if (shape.named[i].required && !is_there) missing.add(*shape.named[i].name);
  }
  if (!missing.is_empty()) return "; the object lacks " + missing.text();
  if (frame.count >= shape.min) return "";
  return "; the object needs " + std::to_string(shape.min) + " keys";
}

std::string JsonMachine::reading(const Config& config) const {
  std::string out;
  switch (config.kind) {
    case Config::kValue: out = "before a value"; break;
    case Config::kScalar:
      out = "in a value: " + regex_text(pool_, config.state, kMaxJsonText);
      break;
    case Config::kFirstKey: out = "behind '{'"; break;
    case Config::kNextKey: out = "before a key"; break;
    case Config::kColon: out = "behind a key"; break;
    case Config::kFirstItem: out = "behind '['"; break;
    case Config::kAfterValue: out = config.frame ? "behind a value" : "behind the whole"; break;
    case Config::kKey: {
      const ObjectShape& shape = grammar_.object(config.frame->shape);
      KeyList named;
      for (uint32_t i = config.low; i < config.high; ++i) named.add(*shape.named[i].name);
      out = "in a key";
      if (!named.is_empty()) out += " of " + named.text();
      if (config.state != kEmptyNode) out += named.is_empty() ? " of its own" : ", or another";
      break;
    }
  }
  return config.frame == nullptr ? out : out + container_reading(*config.frame);
}

std::vector<std::string> JsonMachine::readings(const Configs& configs, std::string_view text,
                                               size_t most) const {
  std::string place =
      json_place(text, [this](std::string_view key) { return grammar_.is_named(key); });
  std::vector<std::string> out;
  for (size_t i = 0; i < configs.size() && i < most; ++i) {
    out.push_back(bounded("at '" + place + "': " + reading(configs[i])));
  }
  return out;
}

}  // namespace vitrine::constrain
