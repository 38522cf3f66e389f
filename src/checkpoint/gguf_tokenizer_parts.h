// SPDX-License-Identifier: Apache-2.0
// Private to the room: parts of the tokenizer.json that a GGUF file's vocabulary is written as.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "text.h"

namespace vitrine::checkpoint {

inline constexpr std::string_view kSpacePiece = "\xe2\x96\x81";  // ▁

/// Writes text as "…" with escapes. Throws kBadFile where `text` is no UTF-8; `place` names it.
template <typename Place>
void append_json_string(std::string_view text, const Place& place, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Character next = read_utf8(rest, 0);
    if (!next.is_valid) throw_bad_file(place() + " is " + quote_text(text) + "; expected UTF-8");
    const char c = rest[0];
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c >= 0 && c < 0x20) {
      out += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
    } else {
      out += rest.substr(0, next.size);
    }
    rest.remove_prefix(next.size);
  }
  out += '"';
}

/// The normalizer that writes a space as SentencePiece does, and the decoder that reads its pieces
/// as text again.
inline nlohmann::json space_as_piece() {
  return {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpacePiece}};
}
inline nlohmann::json piece_decoders() {
  nlohmann::json decoders = nlohmann::json::array();
  decoders.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", kSpacePiece}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  return decoders;
}

}  // namespace vitrine::checkpoint
