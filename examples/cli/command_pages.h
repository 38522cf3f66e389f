// SPDX-License-Identifier: Apache-2.0
// docs/command-line.md and the man page, made of the tool's commands.
#pragma once

#include <string>
#include <vector>

#include "command_tree.h"

namespace cli {

/// docs/command-line.md.
std::string markdown_page(const std::vector<CommandInfo>& tree);
/// vitrine.1, for man.
std::string man_page(const std::vector<CommandInfo>& tree);

}  // namespace cli
