// SPDX-License-Identifier: Apache-2.0
// Completions for shells, made of the tool's commands.
#pragma once

#include <string>
#include <vector>

#include "command_tree.h"

namespace cli {

/// For bash: to be sourced, or a file of bash-completion's.
std::string bash_completion(const std::vector<CommandInfo>& tree);
/// For zsh: a file _vitrine in its fpath, or to be sourced behind compinit.
std::string zsh_completion(const std::vector<CommandInfo>& tree);

}  // namespace cli
