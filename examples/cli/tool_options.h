// SPDX-License-Identifier: Apache-2.0
// The functions that an answer may call: --tools and --tool-choice.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "output_path.h"
#include "vitrine/chat_tools.h"

namespace CLI {
class App;
}

namespace cli {

struct ToolOptions {
  std::string definitions;  ///< a file, or its JSON itself
  std::string choice;       ///< empty: auto

  void add_to(CLI::App& command);
  bool is_given() const { return !definitions.empty(); }
  /// Refuses a choice without tools.
  void check() const;
  /// Reads them. Throws what the file, the definitions and the choice are refused for.
  vitrine::ChatTools read() const;
  vitrine::ToolChoice read_choice() const;
  bool is_text() const;
  std::vector<NamedPath> files() const;
};

/// How a model calls the functions of a run.
class ToolCalling {
 public:
  /// `format`: how the model writes calls; empty: what its template and vocabulary tell. All three
  /// must stay.
  ToolCalling(const ToolOptions& options, const vitrine::ChatTemplate& chat,
              const vitrine::Tokenizer& tokenizer, const std::string& format);

  const std::string& format() const { return format_; }
  /// What the answer to a prompt is.
  vitrine::ToolCallTags tags(const std::string& prompt) const;
  /// Says so where the template writes the same prompt without the tools.
  void warn_if_untold(const std::string& model, const std::vector<vitrine::ChatMessage>& messages,
                      const vitrine::ChatOptions& options) const;

 private:
  const vitrine::ChatTools tools_;
  const vitrine::ToolChoice choice_;
  const vitrine::ChatTemplate& chat_;
  const vitrine::Tokenizer& tokenizer_;
  const std::string template_source_;
  const std::string format_;
};

}  // namespace cli
