// SPDX-License-Identifier: Apache-2.0
// XML: that it is well-formed (by expat), has the elements and attributes that are wanted, and the
// right values, each scored apart.
#include <expat.h>

#include <algorithm>

#include "evaluation/scorers/reading.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostXmlBytes = size_t{1} << 20;
constexpr size_t kMostXmlDepth = 64;
constexpr size_t kMostXmlValues = 10'000;

/// Texts by path: "order/item", "order/item@sku", of elements that stand several times
/// "order/item[2]" for the second.
struct XmlValues {
  std::map<std::string, std::string> texts;
  std::vector<std::string> open;         // paths of open elements
  std::map<std::string, size_t> counts;  // how often a path was opened
  XML_Parser parser = nullptr;

  void stop() { XML_StopParser(parser, XML_FALSE); }
};

void XMLCALL begin_element(void* user, const XML_Char* name, const XML_Char** attributes) {
  auto& values = *static_cast<XmlValues*>(user);
  if (values.open.size() >= kMostXmlDepth || values.texts.size() >= kMostXmlValues) {
    return values.stop();
  }
  std::string path = values.open.empty() ? name : values.open.back() + "/" + name;
  const size_t count = ++values.counts[path];
  if (count > 1) path += "[" + std::to_string(count) + "]";
  values.texts[path];
  for (; *attributes != nullptr; attributes += 2) {
    values.texts[path + "@" + attributes[0]] = attributes[1];
  }
  values.open.push_back(std::move(path));
}

void XMLCALL end_element(void* user, const XML_Char*) {
  static_cast<XmlValues*>(user)->open.pop_back();
}

void XMLCALL add_characters(void* user, const XML_Char* text, int size) {
  auto& values = *static_cast<XmlValues*>(user);
  if (!values.open.empty()) {
    values.texts[values.open.back()].append(text, static_cast<size_t>(size));
  }
}

/// A document type may define entities without end: an answer needs none.
void XMLCALL refuse_document_type(void* user, const XML_Char*, const XML_Char*, const XML_Char*,
                                  int) {
  static_cast<XmlValues*>(user)->stop();
}

/// Nothing where the text is not well-formed.
std::optional<XmlValues> read_xml(std::string_view text) {
  if (text.empty() || text.size() > kMostXmlBytes) return std::nullopt;
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(
      XML_ParserCreate("UTF-8"), &XML_ParserFree);
  if (parser == nullptr) throw Error(ErrorKind::kOutOfMemory, "XML parser: no memory");
  XmlValues values;
  values.parser = parser.get();
  XML_SetUserData(parser.get(), &values);
  XML_SetElementHandler(parser.get(), begin_element, end_element);
  XML_SetCharacterDataHandler(parser.get(), add_characters);
  XML_SetStartDoctypeDeclHandler(parser.get(), refuse_document_type);
  const XML_Status status =
      XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE);
  if (status != XML_STATUS_OK) return std::nullopt;
  return values;
}

/// The whole answer, else its first ``` block, else from its first "<" to its last ">".
std::optional<std::pair<std::string_view, bool>> find_xml(std::string_view text) {
  text = trim(text);
  if (read_xml(text)) return std::pair{text, true};
  const std::optional<std::string_view> block = fenced_block(text);
  if (block && read_xml(trim(*block))) return std::pair{trim(*block), false};
  const size_t begin = text.find('<');
  const size_t end = text.rfind('>');
  if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return {};
  const std::string_view inner = text.substr(begin, end - begin + 1);
  return read_xml(inner) ? std::optional(std::pair{inner, false}) : std::nullopt;
}

Score score_xml(const ScoredAnswer& answer) {
  const std::string text = answer_text(answer);
  Score score;
  score.parts = {{"valid", 0}, {"bare", 0}, {"elements", 0}, {"values", 0}};
  const auto found = find_xml(text);
  score.is_parsed = found.has_value();
  if (!found) return score;
  score.extracted = short_text(found->first);
  const XmlValues values = *read_xml(found->first);
  const Json& right = answer.item.data["answer"];
  size_t num_there = 0;
  size_t num_right = 0;
  for (const auto& [path, wanted] : right.items()) {
    const auto value = values.texts.find(path);
    if (value == values.texts.end()) continue;
    ++num_there;
    if (fold_case(trim(value->second)) == fold_case(trim(wanted.get<std::string>()))) ++num_right;
  }
  const auto all = static_cast<double>(right.size());
  score.parts = {{"valid", 1},
                 {"bare", found->second ? 1 : 0},
                 {"elements", static_cast<double>(num_there) / all},
                 {"values", static_cast<double>(num_right) / all}};
  score.value = score.parts["values"];
  score.is_right = num_right == right.size();
  return score;
}

std::string check_xml(const Item& item, const Json&) {
  const Json* right = find_field(item.data, "answer");
  const bool is_map =
      right != nullptr && right->is_object() && !right->empty() &&
      std::ranges::all_of(*right, [](const Json& text) { return text.is_string(); });
  return is_map ? "" : field_problem("answer", right, "an object of paths and texts");
}

std::string expected_xml(const Item& item) { return item.data["answer"].dump(); }

VITRINE_REGISTER_SCORER(
    {.name = "xml", .score = score_xml, .check = check_xml, .expected = expected_xml});

}  // namespace

}  // namespace vitrine::evaluation
