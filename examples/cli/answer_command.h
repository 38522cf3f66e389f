// SPDX-License-Identifier: Apache-2.0
// A program of the user's that judges answers.
#pragma once

#include <string>
#include <string_view>

namespace cli {

/// Runs `command` by the shell with `text` on its standard input; what it prints goes to standard
/// error. True where it exits with 0, false with 1 to 125. Throws kUnavailable where it cannot be
/// run or a signal ends it.
bool is_accepted_by(const std::string& command, std::string_view text);

}  // namespace cli
