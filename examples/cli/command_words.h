// SPDX-License-Identifier: Apache-2.0
// The words of a command line, before CLI11 reads them: which command they choose, which options
// they name, and what they mean where they are llama.cpp's.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cli {

struct CommandWords {
  std::vector<std::string> words;           ///< without the program's name
  CLI::App* command = nullptr;              ///< the command that they choose; the tool itself: none
  size_t begin = 0;                         ///< of the words behind the command's name
  std::set<const CLI::Option*> given;       ///< the command's options among them
  std::vector<std::string> without_effect;  ///< flags of llama.cpp's that were taken out, in order
};

/// Reads the words and puts Vitrine's options in the place of llama.cpp's. Throws kInvalidArgument
/// where one of those asks for what there is not.
CommandWords read_words(CLI::App& app, std::vector<std::string> words);

/// One line for the flags without effect; empty where there are none. `device`: "cpu", "cuda:0".
std::string without_effect_note(const CommandWords& words, const std::string& device);

/// llama.cpp's names and what stands for them here, in the order of the documents.
std::vector<std::pair<std::string, std::string>> llama_flag_meanings();

/// Returns what does here what a word that is no option does in llama.cpp; empty where nothing is
/// known.
std::string llama_flag_hint(const std::string& word);

}  // namespace cli
