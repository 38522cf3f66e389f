// SPDX-License-Identifier: Apache-2.0
// What somebody meant who typed a word that is none of ours.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "command_words.h"

namespace cli {

/// How many letters are inserted, left out, replaced or swapped with their neighbour between two
/// words.
size_t edit_distance(std::string_view a, std::string_view b);

/// The nearest of the words, where it is near enough to be what was meant; else empty.
std::string nearest_word(std::string_view typed, const std::vector<std::string>& words);

/// One line for words that no command or option took; empty where there are none. `extras`: what
/// CLI11 was left with.
std::string unknown_words(CLI::App& app, const CommandWords& words,
                          const std::vector<std::string>& extras);

}  // namespace cli
