// SPDX-License-Identifier: Apache-2.0
// Lark's library `common`.
#include <map>

#include "grammar_rules.h"

namespace vitrine::constrain {

namespace {

/// Lark's library `common`, as regular expressions.
const std::map<std::string, const char*, std::less<>> kCommon = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT",
     "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "\\/\\/[^\\n]*"},
    {"C_COMMENT", "\\/\\*(?:[^*]|\\*+[^*\\/])*\\*+\\/"},
    {"SQL_COMMENT", "--[^\\n]*"}};

}  // namespace

const char* lark_common(std::string_view name) {
  const auto found = kCommon.find(name);
  return found == kCommon.end() ? nullptr : found->second;
}

std::string with_dot(std::string_view pattern, std::string_view dot) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '[') in_class = true;
    if (pattern[i] == ']') in_class = false;
    if (pattern[i] == '.' && !in_class) {
      out += dot;
      continue;
    }
    out += pattern[i];
    if (pattern[i] == '\\' && i + 1 < pattern.size()) out += pattern[++i];
  }
  return out;
}

size_t end_of_braces(std::string_view text, size_t at) {
  int depth = 0;
  for (bool in_string = false; at < text.size(); ++at) {
    const char character = text[at];
    if (in_string && character == '\\') {
      ++at;
    } else if (character == '"') {
      in_string = !in_string;
    } else if (!in_string && character == '{') {
      ++depth;
    } else if (!in_string && character == '}' && --depth == 0) {
      return at;
    }
    if (depth == 0) break;
  }
  return text.size();
}

/// Depth first; a rule is open while what it names is looked at.
std::optional<uint32_t> rule_within_itself(const std::vector<NamedRule>& rules,
                                           const std::vector<uint32_t>& from) {
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> states(rules.size(), kNew);
  std::vector<std::pair<uint32_t, bool>> open;
  for (const uint32_t id : from) open.emplace_back(id, false);
  while (!open.empty()) {
    const auto [id, is_done] = open.back();
    open.pop_back();
    if (is_done) {
      states[id] = kDone;
      continue;
    }
    if (states[id] == kDone) continue;
    if (states[id] == kOpen) return id;
    states[id] = kOpen;
    open.emplace_back(id, true);
    std::vector<const Expression*> inner = {&rules[id].body};
    while (!inner.empty()) {
      const Expression* expression = inner.back();
      inner.pop_back();
      if (expression->kind == Expression::kReference && states[expression->rule] != kDone) {
        open.emplace_back(expression->rule, false);
      }
      for (const Expression& part : expression->parts) inner.push_back(&part);
    }
  }
  return {};
}

}  // namespace vitrine::constrain
