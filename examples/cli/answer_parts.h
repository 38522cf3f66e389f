// SPDX-License-Identifier: Apache-2.0
// This tells what an answer has beside its content, for `generate --chat` and `chat`.
#pragma once

#include <string>
#include <string_view>

#include "common.h"
#include "vitrine/chat_output.h"

namespace cli {

/// How an answer is taken apart.
struct AnswerFormat {
  std::string name = "plain";      ///< of vitrine::chat_output_formats()
  std::string prompt, tools_json;  ///< as vitrine::ChatOutputOptions has them

  bool is_plain() const { return name == "plain"; }
};

/// Shows reasoning as it is made, on standard error; --quiet leaves it out.
class ReasoningText {
 public:
  void add(std::string_view text);
  /// Ends its line, where something was shown.
  void end();

 private:
  bool is_open_ = false;
};

/// The calls of --tools, a line each, as `f({"a": 1})`.
std::string calls_text(const vitrine::ChatAnswer& parts);
/// Tells calls that nobody asked for on standard error, a line each.
void write_calls(const vitrine::ChatAnswer& parts);
/// The id of a call: the model's, or one that its place and text make.
std::string call_id(const vitrine::ChatAnswer& parts, size_t index);
/// Adds "reasoning", and "tool_calls" in OpenAI's form, where the answer has them.
void add_parts(const vitrine::ChatAnswer& parts, nlohmann::ordered_json& json);

}  // namespace cli
