// SPDX-License-Identifier: Apache-2.0
// Files that tell what was said, for their owner's eyes alone.
#pragma once

#include <string>
#include <string_view>

namespace cli {

/// Replaces the file by way of one beside it, which is synced first: where that fails (kIo), the
/// old file is whole. Whoever else is on the machine cannot read it (mode 600).
void write_private_file(const std::string& path, std::string_view text);

}  // namespace cli
