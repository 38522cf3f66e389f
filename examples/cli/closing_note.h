// SPDX-License-Identifier: Apache-2.0
// What commands say in their closing line.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace cli {

/// "12 tokens at 240 tokens/s"; without a speed where no step was timed: "1 token", "no tokens".
/// `steps`: those of the tokens that took the seconds (a prompt's pass makes the first one).
std::string token_speed(int64_t tokens, int64_t steps, double seconds);

/// -q, --quiet: write_remark() says nothing; warnings and mistakes are told all the same.
void add_quiet(CLI::App& command);
/// A line to standard error that a script can do without.
void write_remark(const std::string& message);

}  // namespace cli
