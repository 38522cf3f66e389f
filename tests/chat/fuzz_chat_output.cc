// SPDX-License-Identifier: Apache-2.0
// fuzz_chat_output SECONDS [SEED]: takes texts of marks, halves of marks and words apart.
//
// No text may be refused; cut anywhere it must come to the same parts, and each of its words must
// be in one of them. Anything else ends with 1 and the iteration, which the same seed repeats.
// Meant for a build with AddressSanitizer and UBSan.
#include <iterator>
#include <random>
#include <stdexcept>

#include "tests/support/fuzz.h"
#include "vitrine/chat_output.h"

namespace {

using namespace vitrine;

/// Marks of all formats, what stands between them, and what looks like either.
constexpr const char* kPieces[] = {"<|start|>",
                                   "assistant",
                                   "<|channel|>",
                                   "analysis",
                                   "final",
                                   "commentary to=functions.f ",
                                   "<|constrain|>json",
                                   "<|message|>",
                                   "<|end|>",
                                   "<|return|>",
                                   "<|call|>",
                                   "<think>",
                                   "</think>",
                                   "[THINK]",
                                   "[/THINK]",
                                   "<|channel>thought\n",
                                   "<channel|>",
                                   "<tool_call>",
                                   "</tool_call>",
                                   "<seed:tool_call>",
                                   "<function=f>",
                                   "<parameter=a>",
                                   "</parameter>",
                                   "</function>",
                                   "<arg_key>",
                                   "</arg_key>",
                                   "<arg_value>",
                                   "</arg_value>",
                                   "<minimax:tool_call>",
                                   "</minimax:tool_call>",
                                   "<invoke name=\"f\">",
                                   "<parameter name=\"a\">",
                                   "</invoke>",
                                   "<|tool_call>call:f{",
                                   "<|\"|>",
                                   "}<tool_call|>",
                                   "<|tool_calls_section_begin|>",
                                   "<|tool_call_begin|>",
                                   "<|tool_call_argument_begin|>",
                                   "<|tool_call_end|>",
                                   "<|tool_calls_section_end|>",
                                   "[TOOL_CALLS]",
                                   "[CALL_ID]",
                                   "[ARGS]",
                                   "<｜tool▁calls▁begin｜>",
                                   "<｜tool▁call▁begin｜>",
                                   "<｜tool▁sep｜>",
                                   "<｜tool▁call▁end｜>",
                                   "<｜tool▁calls▁end｜>",
                                   "function",
                                   "\n```json\n",
                                   "```",
                                   "<｜DSML｜function_calls>",
                                   "<｜DSML｜invoke name=\"f\">",
                                   "</｜DSML｜invoke>",
                                   "<｜DSML｜parameter name=\"a\" string=\"true\">",
                                   "</｜DSML｜parameter>",
                                   "</｜DSML｜function_calls>",
                                   "<|tool_call_start|>[f(a='",
                                   "')]<|tool_call_end|>",
                                   "f",
                                   "a:",
                                   ":",
                                   ",",
                                   "=",
                                   "(",
                                   ")",
                                   "[",
                                   "]",
                                   "{",
                                   "}",
                                   "\"",
                                   "'",
                                   "\\",
                                   "\n",
                                   " ",
                                   "1",
                                   "true",
                                   "{\"name\": \"f\", \"arguments\": {\"a\": \"",
                                   "\"}}",
                                   "{\"name\": \"f\", \"arguments\": ",
                                   "\xff",
                                   "\xe2\x82",
                                   "\xf0\x9f\x99\x82"};

constexpr const char* kPrompts[] = {"",
                                    "<think>\n",
                                    "<|start|>assistant",
                                    "[THINK]",
                                    "<|start|>assistant<|channel|>final<|message|>",
                                    "<|channel>thought\n"};

ChatAnswer take_apart(const std::string& format, std::string_view text, std::string_view prompt,
                      const std::function<size_t()>& next_size) {
  ChatOutputParser parser(format, {.prompt = prompt});
  while (!text.empty()) {
    const size_t size = std::min(text.size(), next_size());
    parser.add(text.substr(0, size));
    text.remove_prefix(size);
  }
  parser.finish();
  return parser.answer();
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_fuzz(argc, argv, "fuzz_chat_output", "texts", [](uint64_t seed) {
    const auto run = [random = std::mt19937_64(seed), formats = chat_output_formats()](
                         long iteration) mutable -> std::optional<bool> {
      std::vector<std::string> words;
      std::string text;
      for (uint64_t count = 1 + random() % 24; count > 0; --count) {
        std::string_view piece = kPieces[random() % std::size(kPieces)];
        if (random() % 12 == 0) piece = piece.substr(0, random() % (piece.size() + 1));
        text += piece;
        if (random() % 2 == 0) {
          words.push_back("W" + std::to_string(words.size()) + "Q");
          text += words.back();
        }
      }
      const std::string& format = formats[static_cast<size_t>(iteration) % formats.size()];
      const std::string prompt = kPrompts[random() % std::size(kPrompts)];
      const ChatAnswer whole = take_apart(format, text, prompt, [&] { return text.size(); });
      const std::string parts = whole.message_json();
      const ChatAnswer bytes = take_apart(format, text, prompt, [] { return size_t{1}; });
      const ChatAnswer cut = take_apart(format, text, prompt, [&] { return random() % 9; });
      if (bytes.message_json() != parts || cut.message_json() != parts) {
        throw std::runtime_error(format + ": the parts depend on where the text is cut: " + text);
      }
      for (const std::string& word : words) {
        if (parts.find(word) == parts.npos) {
          std::string message = format;
          message.append(": ").append(word).append(" is lost: ").append(text);
          throw std::runtime_error(message);
        }
      }
      return true;
    };
    return testing::FuzzTarget{run, 100, false};
  });
}
