// SPDX-License-Identifier: Apache-2.0
// A whole file as text.
#pragma once

#include <string>

namespace cli {

/// Throws kIo (it is not there, cannot be read) and kInvalidArgument (above `max_bytes`).
std::string read_text_file(const std::string& path, size_t max_bytes);

}  // namespace cli
