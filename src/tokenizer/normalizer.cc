// SPDX-License-Identifier: Apache-2.0
#include "normalizer.h"

namespace vitrine::tokenizer {
namespace {

std::string strip(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!is_whitespace(next_code_point(text, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && is_continuation(text[last])) --last;
    size_t pos = last;
    if (!is_whitespace(next_code_point(text, pos))) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

std::string replace_matches(const Regex& regex, std::string_view text, const std::string& content,
                            RegexScratch& scratch) {
  if (text.empty()) return {};
  std::vector<RegexSpan> spans;
  regex.split(text, scratch, spans);
  std::string out;
  for (const RegexSpan& span : spans) {
    if (span.is_match)
      out += content;
    else
      out.append(text, span.begin, span.end - span.begin);
    if (out.size() > kMaxTextBytes) {
      throw Error(ErrorKind::kInvalidArgument,
                  "text of " + std::to_string(text.size()) + " bytes grows beyond " +
                      std::to_string(kMaxTextBytes) + " in the tokenizer's Replace; shorten it");
    }
  }
  return out;
}

void append_byte_level(std::string_view text, std::string& out) {
  for (char byte : text) append_utf8(byte_to_char(static_cast<uint8_t>(byte)), out);
}

Normalizer Normalizer::load(const JsonNode& node) {
  Normalizer normalizer;
  if (!node.is_null()) normalizer.add(node);
  return normalizer;
}

void Normalizer::add(const JsonNode& node) {
  const std::string& type = node.at("type").as_string();
  if (type == "Sequence") {
    for (const JsonNode& element : node.at("normalizers").elements()) add(element);
    return;
  }
  Step step{.kind = Kind::kUnicode, .content = {}, .regex = {}};
  if (type == "NFC") {
    step.form = NormalizationForm::kNfc;
  } else if (type == "NFD") {
    step.form = NormalizationForm::kNfd;
  } else if (type == "NFKC") {
    step.form = NormalizationForm::kNfkc;
  } else if (type == "NFKD") {
    step.form = NormalizationForm::kNfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = node.at("prepend").as_string();
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.regex = node.at("pattern").as_pattern();
    step.content = node.at("content").as_string();
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.strip_left = node.at("strip_left").as_bool();
    step.strip_right = node.at("strip_right").as_bool();
  } else {
    node.get("type").unsupported("normalizer " + quote(type));
  }
  steps_.push_back(std::move(step));
}

std::string Normalizer::apply(std::string text, RegexScratch& scratch) const {
  for (const Step& step : steps_) {
    if (text.empty()) break;
    switch (step.kind) {
      case Kind::kUnicode: text = normalize_unicode(text, step.form); break;
      case Kind::kLowercase: text = lowercase_unicode(text); break;
      case Kind::kPrepend: text.insert(0, step.content); break;
      case Kind::kReplace: text = replace_matches(*step.regex, text, step.content, scratch); break;
      case Kind::kStrip: text = strip(text, step.strip_left, step.strip_right); break;
      case Kind::kByteLevel: {
        std::string mapped;
        append_byte_level(text, mapped);
        text = std::move(mapped);
        break;
      }
    }
  }
  return text;
}

}  // namespace vitrine::tokenizer
