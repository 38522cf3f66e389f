// SPDX-License-Identifier: Apache-2.0
// Every option has a twin in the environment: --max-new-tokens is VITRINE_MAX_NEW_TOKENS.
#pragma once

#include <string>

#include "command_words.h"

namespace cli {

/// The twin's name; empty for an option without a long name and for --help.
std::string environment_name(const CLI::Option& option);

/// Lets the chosen command take from the environment what the command line does not say. A variable
/// that contradicts an option of the command line is left aside, as is an empty one.
void take_environment(const CommandWords& words);

/// The message of a mistake, with the variables behind it that have to do with it.
std::string with_variables(std::string message);

}  // namespace cli
