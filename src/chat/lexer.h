// SPDX-License-Identifier: Apache-2.0
// Private to the room: a template's source as tokens, with the whitespace rules applied.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vitrine::chat {

enum class TokenKind : uint8_t {
  kData,           ///< text that is written as it is
  kVariableBegin,  ///< {{
  kVariableEnd,
  kBlockBegin,  ///< {%
  kBlockEnd,
  kName,
  kString,  ///< `text`: its value
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

/// Cuts a template up as Jinja does with trim_blocks and lstrip_blocks, which is how chat templates
/// are written. Throws kBadFile ("name: line N: …"). The last token is kEnd.
std::vector<Token> tokenize_template(std::string_view source, const std::string& name);

/// How a token reads in a message: "'endif'", "the end of the template".
std::string describe(const Token& token);

}  // namespace vitrine::chat
