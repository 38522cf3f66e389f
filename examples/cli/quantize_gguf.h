// SPDX-License-Identifier: Apache-2.0
// A model as a GGUF file: `vitrine quantize MODEL OUT.gguf --type …`.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace cli {

struct GgufArguments {
  std::string type, importance;
  bool pure = false;

  void add_to(CLI::App& command);
  bool is_given() const { return !type.empty() || !importance.empty() || pure; }
  /// Writes the file; returns the exit code.
  int run(const std::string& model, const std::string& out, bool is_lenient) const;
};

}  // namespace cli
