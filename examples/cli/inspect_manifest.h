// SPDX-License-Identifier: Apache-2.0
// inspect --manifest: what a quantized folder says of itself, held against its files.
#pragma once

#include <string>

namespace cli {

/// Prints the account of a folder's manifest. `source`: the folder that it was made of, whose files
/// are hashed, too; empty: they are not. Returns the exit code: 1 where a file is not what the
/// manifest says.
int inspect_manifest(const std::string& folder, const std::string& source, bool is_json);

}  // namespace cli
