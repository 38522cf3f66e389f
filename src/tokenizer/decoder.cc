// SPDX-License-Identifier: Apache-2.0
#include "decoder.h"

#include <utility>

#include "metaspace.h"
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

/// The byte that "<0x0A>" stands for, or -1; digits as Rust's from_str_radix reads them.
int fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  const int low = digit(token[4]);
  if (token[3] == '+') return low;
  const int high = digit(token[3]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/// A run of such bytes as text: whole where it is valid UTF-8, else one U+FFFD for each byte.
std::string run_text(const std::string& bytes) {
  std::string text;
  append_lossy(bytes, true, text);
  if (text == bytes) return text;
  text.clear();
  for (size_t i = 0; i < bytes.size(); ++i) append_utf8(0xfffd, text);
  return text;
}

std::vector<std::string> join_byte_runs(std::vector<std::string> tokens) {
  std::vector<std::string> result;
  std::string run;
  for (std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      run += static_cast<char>(byte);
      continue;
    }
    if (!run.empty()) result.push_back(run_text(std::exchange(run, {})));
    result.push_back(std::move(token));
  }
  if (!run.empty()) result.push_back(run_text(run));
  return result;
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
  decoder.find_streamability();
  return decoder;
}

void Decoder::find_streamability() {
  bool is_joined = false, has_bytes = false;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kFuse) {
      is_joined = true;
    } else if (step.kind == Kind::kByteLevel || step.kind == Kind::kByteFallback) {
      is_streamable_ &= !is_joined && !has_bytes;
      has_bytes = true;
      if (step.kind == Kind::kByteLevel) is_joined = true;
    } else if (is_joined && step.kind == Kind::kStrip && step.strip_end == 0 && !fused_strip_ &&
               steps_.front().kind != Kind::kByteLevel) {
      fused_strip_ = step;
    } else if (is_joined || has_bytes) {
      is_streamable_ = false;
    }
  }
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
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    const Metaspace metaspace = Metaspace::load(node);
    step.content = metaspace.replacement;
    step.drops_first = metaspace.scheme != Metaspace::Scheme::kNever;
  } else if (type != "ByteLevel") {
    node.get("type").unsupported("decoder " + quote(type));
  }
  steps_.push_back(std::move(step));
}

std::string Decoder::apply_to_token(const Step& step, const std::string& token, bool is_first,
                                    RegexScratch& scratch) {
  if (step.kind == Kind::kMetaspace) {
    std::string text;
    for (size_t pos = 0; pos < token.size();) {
      const size_t begin = pos;
      next_code_point(token, pos);
      const std::string_view character = std::string_view(token).substr(begin, pos - begin);
      if (character != step.content) {
        text += character;
      } else if (!is_first || !step.drops_first) {
        text += ' ';
      }
    }
    return text;
  }
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
    switch (step.kind) {
      case Kind::kReplace:
      case Kind::kStrip:
      case Kind::kMetaspace:
        for (size_t i = 0; i < tokens.size(); ++i) {
          tokens[i] = apply_to_token(step, tokens[i], i == 0, scratch);
        }
        break;
      case Kind::kFuse: tokens = {join(tokens)}; break;
      case Kind::kByteFallback: tokens = join_byte_runs(std::move(tokens)); break;
      case Kind::kByteLevel: {
        std::string bytes, text;
        for (const std::string& token : tokens) append_token_bytes(token, bytes);
        append_lossy(bytes, true, text);
        tokens = {std::move(text)};
        break;
      }
    }
  }
  if (!joins_with_space_) return join(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) text += (i > 0 ? " " : "") + tokens[i];
  return text;
}

std::string Decoder::strip_start(std::string text, Stream& stream) const {
  if (!fused_strip_ || !stream.is_stripping) return text;
  const std::string& content = fused_strip_->content;
  while (stream.num_stripped < fused_strip_->strip_start && text.starts_with(content)) {
    text.erase(0, content.size());
    ++stream.num_stripped;
  }
  if (!text.empty()) stream.is_stripping = false;
  return text;
}

std::string Decoder::add(std::string token, Stream& stream) const {
  const bool is_first = std::exchange(stream.is_first, false);
  if (joins_with_space_) return is_first ? token : " " + token;
  RegexScratch scratch;
  bool is_fused = false;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kFuse) {
      is_fused = true;
    } else if (step.kind == Kind::kByteLevel) {
      std::string bytes;
      append_token_bytes(token, bytes);
      return bytes;
    } else if (step.kind == Kind::kByteFallback) {
      if (const int byte = fallback_byte(token); byte >= 0) {
        stream.byte_run += static_cast<char>(byte);
        return {};
      }
      if (!stream.byte_run.empty()) token = run_text(std::exchange(stream.byte_run, {})) + token;
    } else if (!is_fused) {
      token = apply_to_token(step, token, is_first, scratch);
    }
  }
  return strip_start(std::move(token), stream);
}

std::string Decoder::finish(Stream& stream) const {
  std::string text = strip_start(run_text(stream.byte_run), stream);
  stream = {};
  return text;
}

std::string Decoder::token_bytes(std::string token) const {
  RegexScratch scratch;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kFuse) break;  // what follows looks at the whole text
    if (step.kind == Kind::kByteLevel) {
      std::string bytes;
      append_token_bytes(token, bytes);
      return bytes;
    }
    if (step.kind == Kind::kByteFallback) {
      const int byte = fallback_byte(token);
      if (byte >= 0) return std::string(1, static_cast<char>(byte));
    } else {
      token = apply_to_token(step, token, false, scratch);
    }
  }
  return token;
}

}  // namespace vitrine::tokenizer
