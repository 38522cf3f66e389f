// SPDX-License-Identifier: Apache-2.0
#include "corpus_report.h"

#include <algorithm>
#include <initializer_list>
#include <string>

namespace vitrine::compress {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFirstBucket = 2048;  // documents shorter than this are the first bucket

bool has_any(std::string_view text, std::initializer_list<std::string_view> signs) {
  return std::ranges::any_of(
      signs, [&](std::string_view sign) { return text.find(sign) != std::string_view::npos; });
}

size_t count_of(std::string_view text, std::string_view sign) {
  size_t count = 0;
  for (size_t at = text.find(sign); at != std::string_view::npos;
       at = text.find(sign, at + sign.size())) {
    ++count;
  }
  return count;
}

bool is_code(std::string_view text) {
  return has_any(text, {"```", "#include <", "\ndef ", "\nclass ", "function (", "function(",
                        "public static", "import java", "\nimport ", "SELECT ", "};\n"}) ||
         count_of(text, ";\n") * 20 > count_of(text, "\n") + 20;
}
bool is_mathematics(std::string_view text) {
  if (has_any(text, {"\\frac", "\\sum", "\\int", "$$", "\\begin{", "theorem", "Theorem"})) {
    return true;
  }
  const auto operators = std::ranges::count_if(
      text, [](char c) { return c == '=' || c == '+' || c == '^' || c == '<' || c == '>'; });
  return operators * 100 > static_cast<ptrdiff_t>(text.size());
}
bool is_reasoning(std::string_view text) {
  return has_any(text, {"<think>", "step by step", "Step 1", "therefore", "Therefore", "because"});
}
bool is_json(std::string_view text) {
  return has_any(text, {"{\"", "\": {", "\":\"", "\": \""}) && text.find('}') != text.npos;
}
bool is_schema(std::string_view text) {
  return text.find("\"type\"") != text.npos && has_any(text, {"\"properties\"", "\"enum\""});
}
bool is_xml(std::string_view text) {
  return text.find("</") != text.npos && text.find('>') != text.npos;
}
bool is_tools(std::string_view text) {
  return has_any(
      text, {"\"tool_calls\"", "<tool_call>", "\"parameters\"", "[TOOL_CALLS]", "function_call"});
}
bool is_chat(std::string_view text) {
  return has_any(text, {"<|im_start|>", "[INST]", "<|start_header_id|>", "<start_of_turn>",
                        "<|user|>", "\nUser:", "\nHuman:"});
}
/// The share of bytes beyond ASCII that a text in another script has.
bool is_other_script(std::string_view text) {
  const auto beyond =
      std::ranges::count_if(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  return beyond * 5 > static_cast<ptrdiff_t>(text.size());
}
/// Words that English lacks and a European language has in any paragraph.
bool is_other_language(std::string_view text) {
  return is_other_script(text) ||
         has_any(text, {" und ", " nicht ", " les ", " dans ", " pour ", " una ", " para ",
                        " della ", " het ", " och ", " jest ", " nie "});
}

std::string bucket_name(int64_t least, int64_t most) {
  if (least == 0) return "below " + std::to_string(most);
  return std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

CorpusReport::CorpusReport(int64_t vocab_size, int64_t context)
    : kinds_{{"domains", "code", is_code},
             {"domains", "mathematics", is_mathematics},
             {"domains", "reasoning", is_reasoning},
             {"domains", "other languages", is_other_language},
             {"domains", "other scripts", is_other_script},
             {"structure", "JSON", is_json},
             {"structure", "JSON schemas", is_schema},
             {"structure", "XML", is_xml},
             {"structure", "tool definitions or calls", is_tools},
             {"structure", "chat turns", is_chat}},
      seen_ids_(static_cast<size_t>(vocab_size)),
      lengths_(1),
      context_(context) {
  for (int64_t least = kFirstBucket; least < context; least *= 2) lengths_.push_back(0);
}

void CorpusReport::add_document(std::string_view text, int64_t document_tokens) {
  ++documents_;
  for (Kind& kind : kinds_) kind.documents += kind.is_found(text) ? 1 : 0;
  size_t bucket = 0;
  for (int64_t least = kFirstBucket; least <= document_tokens && bucket + 1 < lengths_.size();
       least *= 2) {
    ++bucket;
  }
  ++lengths_[bucket];
}

void CorpusReport::add_window(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (static_cast<size_t>(id) < seen_ids_.size()) seen_ids_[static_cast<size_t>(id)] = true;
  }
}

Json CorpusReport::json() const {
  Json report = Json::object(), missing = Json::array();
  const auto share = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  for (const Kind& kind : kinds_) {
    report[std::string(kind.group)][std::string(kind.name)] = share(kind.documents, documents_);
    if (kind.documents == 0) missing.push_back(kind.name);
  }
  const auto seen = std::ranges::count(seen_ids_, true);
  report["vocabulary"] = share(seen, std::ssize(seen_ids_));
  int64_t least = 0, most = kFirstBucket;
  for (const int64_t documents : lengths_) {
    const std::string name = bucket_name(least, most);
    report["context_lengths"][name] = share(documents, documents_);
    if (documents == 0) missing.push_back("documents of " + name + " tokens");
    least = most;
    most = std::min(most * 2, std::max(most, context_));
  }
  report["missing"] = missing;
  return report;
}

}  // namespace vitrine::compress
