#include "decoder.h"

#include "normalizer.h"
#include "unicode.h"

namespace vitrine::tokenizer {
namespace {

/// The bytes that a token stands for; a token with a foreign character stands for itself.
void append_token_bytes(const std::string& token, std::string& bytes) {
  const size_t size = bytes.size();
  for (size_t pos = 0; pos < token.size();) {
    const int byte = char_to_byte(next_code_point(token, pos));
    if (byte < 0) {
      bytes.resize(size);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(byte);
  }
}

std::string join(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

}  // namespace

Decoder Decoder::load(const JsonNode& node) {
  Decoder decoder;
  if (node.is_null()) {
    decoder.joins_with_space_ = true;
    return decoder;
  }
  decoder.add(node);
  bool is_joined = false;
  for (const Step& step : decoder.steps_) {
    if (is_joined && step.kind != Kind::kFuse) decoder.is_streamable_ = false;
    if (step.kind == Kind::kFuse || step.kind == Kind::kByteLevel) is_joined = true;
  }
  return decoder;
}

void Decoder::add(const JsonNode& node) {
  const std::string& type = node.at("type").as_string();
  if (type == "Sequence") {
    for (const JsonNode& element : node.at("decoders").elements()) add(element);
    return;
  }
  Step step{.kind = Kind::kByteLevel, .regex = {}, .content = {}};
  if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.regex = node.at("pattern").as_pattern();
    step.content = node.at("content").as_string();
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.content = node.at("content").as_string();
    step.strip_start = static_cast<size_t>(node.at("start").as_integer(1 << 20));
    step.strip_end = static_cast<size_t>(node.at("stop").as_integer(1 << 20));
    size_t pos = 0;
    if (!step.content.empty()) next_code_point(step.content, pos);
    if (pos == 0 || pos != step.content.size()) node.at("content").fail_type("one character");
  } else if (type != "ByteLevel") {
    node.get("type").unsupported("decoder " + quote(type));
  }
  steps_.push_back(std::move(step));
}

std::string Decoder::apply_to_token(const Step& step, const std::string& token,
                                    RegexScratch& scratch) {
  if (step.kind == Kind::kReplace) {
    return replace_matches(*step.regex, token, step.content, scratch);
  }
  std::string_view text = token;
  for (size_t i = 0; i < step.strip_start && text.starts_with(step.content); ++i) {
    text.remove_prefix(step.content.size());
  }
  for (size_t i = 0; i < step.strip_end && text.ends_with(step.content); ++i) {
    text.remove_suffix(step.content.size());
  }
  return std::string(text);
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  RegexScratch scratch;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kReplace || step.kind == Kind::kStrip) {
      for (std::string& token : tokens) token = apply_to_token(step, token, scratch);
    } else if (step.kind == Kind::kFuse) {
      tokens = {join(tokens)};
    } else {
      std::string bytes, text;
      for (const std::string& token : tokens) append_token_bytes(token, bytes);
      append_lossy(bytes, true, text);
      tokens = {std::move(text)};
    }
  }
  if (!joins_with_space_) return join(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) text += (i > 0 ? " " : "") + tokens[i];
  return text;
}

std::string Decoder::token_bytes(std::string token, bool is_first) const {
  if (joins_with_space_) return is_first ? token : " " + token;
  RegexScratch scratch;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kReplace || step.kind == Kind::kStrip) {
      token = apply_to_token(step, token, scratch);
    } else if (step.kind == Kind::kByteLevel) {
      std::string bytes;
      append_token_bytes(token, bytes);
      return bytes;
    }
  }
  return token;
}

}  // namespace vitrine::tokenizer
