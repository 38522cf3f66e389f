// SPDX-License-Identifier: Apache-2.0
// Sealed logs that a command reads together.
#pragma once

#include <string>
#include <vector>

namespace cli {

/// Returns the files that the paths name: themselves, or the .vtr files of a folder and below it,
/// in order of name. Refuses a folder without any; `option` names it.
std::vector<std::string> audit_log_files(const std::string& option,
                                         const std::vector<std::string>& paths);

}  // namespace cli
