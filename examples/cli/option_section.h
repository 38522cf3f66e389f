// SPDX-License-Identifier: Apache-2.0
// Options that commands share stand in a section of their own, in a help text as in the documents.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace cli {

/// The options that a command gets while one of these lives belong to its section.
class OptionSection {
 public:
  OptionSection(CLI::App& command, const std::string& name) : command_(command) {
    command_.option_defaults()->group(name);
  }
  ~OptionSection() { command_.option_defaults()->group("Options"); }
  OptionSection(const OptionSection&) = delete;
  OptionSection& operator=(const OptionSection&) = delete;

 private:
  CLI::App& command_;
};

}  // namespace cli
