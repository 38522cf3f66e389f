// SPDX-License-Identifier: Apache-2.0
#include "char_set.h"

#include "regex.h"
#include "unicode.h"

namespace vitrine::tokenizer {
namespace {

struct GeneralCategory {
  std::string_view long_name;    // as Oniguruma compares names: no spaces, '_' or '-', lower case
  std::string_view short_names;  // two letters each
};
constexpr GeneralCategory kCategoryGroups[] = {
    {"letter", "LuLlLtLmLo"},
    {"l", "LuLlLtLmLo"},
    {"casedletter", "LuLlLt"},
    {"lc", "LuLlLt"},
    {"mark", "MnMcMe"},
    {"combiningmark", "MnMcMe"},
    {"m", "MnMcMe"},
    {"number", "NdNlNo"},
    {"n", "NdNlNo"},
    {"punctuation", "PcPdPsPePiPfPo"},
    {"punct", "PcPdPsPePiPfPo"},
    {"p", "PcPdPsPePiPfPo"},
    {"symbol", "SmScSkSo"},
    {"s", "SmScSkSo"},
    {"separator", "ZsZlZp"},
    {"z", "ZsZlZp"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"control", "Cc"},
    {"cntrl", "Cc"},
    {"format", "Cf"},
    {"privateuse", "Co"},
};
constexpr std::string_view kCategories = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCo";
constexpr std::string_view kScripts[] = {
    "Arabic",   "Armenian",  "Bengali",   "Bopomofo", "Common",   "Cyrillic", "Devanagari",
    "Ethiopic", "Georgian",  "Greek",     "Gujarati", "Gurmukhi", "Han",      "Hangul",
    "Hebrew",   "Hiragana",  "Inherited", "Kannada",  "Katakana", "Khmer",    "Lao",
    "Latin",    "Malayalam", "Mongolian", "Myanmar",  "Oriya",    "Sinhala",  "Syriac",
    "Tamil",    "Telugu",    "Thaana",    "Thai",     "Tibetan"};

std::string ascii_lower(std::string_view text) {
  std::string lower;
  for (char c : text) lower += tokenizer::ascii_lower(c);
  return lower;
}

/// PCRE2 items of the general categories in `names` ("LuLl"): properties first, they match most.
std::string category_items(std::string_view names) {
  std::string items, additions;
  for (size_t i = 0; i < names.size(); i += 2) {
    const std::string name(names.substr(i, 2));
    items += "\\p{" + name + "}";
    additions += property_additions(name);
  }
  return items + additions;
}

CharSet category_set(std::string_view names) {
  CharSet set{category_items(names), {}, {}, false};
  // The one code point that left its category after Unicode 14 (Mn to Mc).
  if (names == "Mn") set.intersections.push_back({"\\x{1171e}", {}, {}, true});
  return set;
}

}  // namespace

std::string CharSet::render() const {
  if (is_flat()) return (negated ? "[^" : "[") + items + "]";
  std::string alternatives = items.empty() ? "" : "[" + items + "]";
  for (const CharSet& set : nested) {
    if (!alternatives.empty()) alternatives += '|';
    alternatives += set.render();
  }
  std::string all = "(?:" + alternatives + ")";
  for (const CharSet& set : intersections) all = "(?:(?=" + set.render() + ")" + all + ")";
  return negated ? "(?:(?!" + all + ")" + kAnyChar + ")" : all;
}

CharSet word_set(bool in_class) {
  std::string items = kWordItems + std::string(word_additions());
  if (!in_class) items += lone_word_additions();
  return {items, {}, {}, false};
}

CharSet property_set(std::string_view name, bool in_class) {
  std::string key;
  for (char c : name) {
    if (c != ' ' && c != '_' && c != '-') key += ascii_lower(c);
  }
  for (const GeneralCategory& group : kCategoryGroups) {
    if (key != group.long_name) continue;
    // PCRE2 tests \p{L} in one step, five categories in five.
    if (group.short_names.size() > 2 && group.short_names != "LuLlLt") {
      std::string items = "\\p{" + std::string(group.short_names.substr(0, 1)) + "}";
      for (size_t i = 0; i < group.short_names.size(); i += 2) {
        items += property_additions(group.short_names.substr(i, 2));
      }
      return {items, {}, {}, false};
    }
    return category_set(group.short_names);
  }
  for (size_t i = 0; i < kCategories.size(); i += 2) {
    const std::string_view category = kCategories.substr(i, 2);
    if (key == ascii_lower(category)) return category_set(category);
  }
  for (std::string_view script : kScripts) {
    if (key == ascii_lower(script)) {
      return {"\\p{sc:" + std::string(script) + "}" + std::string(property_additions(script)),
              {},
              {},
              false};
    }
  }
  // What is unassigned shrinks with each Unicode version, so it is said by what is assigned.
  constexpr std::string_view kVisible = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZp";
  if (key == "c" || key == "other") return {category_items(kVisible), {}, {}, true};
  if (key == "cn" || key == "unassigned") return {category_items(kCategories), {}, {}, true};
  if (key == "any") return {"\\x{0}-\\x{10ffff}", {}, {}, false};
  if (key == "space" || key == "whitespace") return {kWhitespaceItems, {}, {}, false};
  if (key == "word") return word_set(in_class);
  throw RegexError{true, "property '" + std::string(name) + "' is not known"};
}

}  // namespace vitrine::tokenizer
