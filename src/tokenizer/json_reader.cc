// SPDX-License-Identifier: Apache-2.0
#include "json_reader.h"

#include "unicode.h"

namespace vitrine::tokenizer {
namespace {

constexpr int kMaxNesting = 64;
const Json kNull;

/// The parser's tree is built without recursion, but ours walks it recursively.
void check_nesting(std::string_view text, const std::string& file) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNesting) {
        throw Error(ErrorKind::kBadFile, file + ": JSON is nested deeper than " +
                                             std::to_string(kMaxNesting) + " at byte " +
                                             std::to_string(i) +
                                             ", expected a Hugging Face tokenizer.json");
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

std::string one_line(std::string_view text) {
  std::string line;
  append_lossy(text, true, line);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

}  // namespace

std::string quote(std::string_view text) {
  constexpr size_t kMaxShown = 60;
  std::string shown = one_line(text.substr(0, kMaxShown));
  if (text.size() > kMaxShown) shown += "…";
  return "'" + shown + "'";
}

Json parse_json(std::string_view text, const std::string& file) {
  check_nesting(text, file);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kBadFile, file + ": not valid JSON (" + one_line(error.what()) +
                                         "), expected a whole Hugging Face tokenizer.json");
  }
}

std::string JsonNode::place() const {
  return path_.empty() ? "the document" : "field '" + one_line(path_) + "'";
}

void JsonNode::fail(const std::string& found, const std::string& expected) const {
  throw Error(ErrorKind::kBadFile,
              file_ + ": " + place() + " is " + found + ", expected " + expected);
}

void JsonNode::fail_type(const char* expected) const {
  std::string found = value_->type_name();
  if (value_->is_string()) found += " " + quote(value_->get_ref<const std::string&>());
  if (value_->is_number()) found += " " + value_->dump();
  fail(is_null() ? "missing or null" : "a " + found, expected);
}

void JsonNode::unsupported(const std::string& what) const {
  throw Error(ErrorKind::kUnsupported,
              file_ + ": " + place() + ": " + what +
                  " is not supported; use a model whose tokenizer is byte-level BPE");
}

JsonNode JsonNode::get(const char* key) const {
  as_object();
  const auto field = value_->find(key);
  return {field == value_->end() ? kNull : *field, file_,
          path_.empty() ? std::string(key) : path_ + "." + key};
}

JsonNode JsonNode::at(const char* key) const {
  JsonNode node = get(key);
  if (node.is_null() && !value_->contains(key)) node.fail("missing", "a value");
  return node;
}

std::vector<JsonNode> JsonNode::elements() const {
  as_array();
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    nodes.emplace_back((*value_)[i], file_, path_ + "[" + std::to_string(i) + "]");
  }
  return nodes;
}

const std::string& JsonNode::as_string() const {
  if (!value_->is_string()) fail_type("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::as_bool() const {
  if (!value_->is_boolean()) fail_type("true or false");
  return value_->get<bool>();
}

int64_t JsonNode::as_integer(int64_t max) const {
  const std::string expected = "an integer from 0 to " + std::to_string(max);
  if (!value_->is_number_integer()) fail_type(expected.c_str());
  // A negative number becomes a huge unsigned one and fails the same test.
  const auto number = value_->is_number_unsigned() ? value_->get<uint64_t>()
                                                   : static_cast<uint64_t>(value_->get<int64_t>());
  if (number > static_cast<uint64_t>(max)) fail(value_->dump(), expected);
  return static_cast<int64_t>(number);
}

const Json& JsonNode::as_object() const {
  if (!value_->is_object()) fail_type("an object");
  return *value_;
}

const Json& JsonNode::as_array() const {
  if (!value_->is_array()) fail_type("an array");
  return *value_;
}

Regex JsonNode::as_pattern() const {
  const JsonNode regex = get("Regex");
  const JsonNode literal = get("String");
  try {
    if (!regex.is_null()) return Regex::from_oniguruma(regex.as_string());
    if (!literal.is_null()) return Regex::from_literal(literal.as_string());
  } catch (const RegexError& error) {
    const std::string pattern = quote((regex.is_null() ? literal : regex).as_string());
    if (error.is_unsupported) unsupported("regex " + pattern + " (" + error.message + ")");
    fail("the regex " + pattern + " (" + error.message + ")", "a valid regex");
  }
  fail("an object without a pattern", "{\"Regex\": …} or {\"String\": …}");
}

}  // namespace vitrine::tokenizer
