// SPDX-License-Identifier: Apache-2.0
// A whole file as text, a pipe and standard input as well.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cli {

/// "-", "/dev/stdin" or another name of it.
bool is_standard_input(const std::string& path);

/// A file's text; "-" is standard input. What can be read once only (a pipe, as of `<(…)`, a
/// terminal) is kept, so that a second call gets it again. Throws kIo (it cannot be read) and
/// kInvalidArgument (it is not there, a folder, or above `max_bytes`).
std::string read_text_file(const std::string& path, size_t max_bytes);

/// Refuses standard input for two options at once; each pair is an option's name and its file.
void refuse_shared_input(const std::vector<std::pair<std::string, std::string>>& inputs);

}  // namespace cli
