// SPDX-License-Identifier: Apache-2.0
// A text from the command line, from a file or from standard input.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace CLI {
class App;
}

namespace cli {

/// -p and -f.
struct PromptOptions {
  std::optional<std::string> text, file;

  void add_to(CLI::App& command);
  bool is_given() const { return text.has_value() || file.has_value(); }
  /// The option and the file that it reads; of a text an empty path.
  std::pair<std::string, std::string> input() const;
  /// Reads it; of a file without the line end that ends it, as llama.cpp does. Warns of bytes that
  /// are no UTF-8. Throws kInvalidArgument for a file that is none or too large.
  std::string read() const;
};

/// The first byte that begins no character of UTF-8; the text's size where there is none.
size_t find_invalid_utf8(std::string_view text);

/// One line where the text has bytes that are no UTF-8: a tokenizer reads U+FFFD in their place.
void warn_of_invalid_utf8(std::string_view text, const std::string& what);

}  // namespace cli
