// SPDX-License-Identifier: Apache-2.0
// Outputs that are to stand beside what a command reads and not in its place.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cli {

/// An option's name and the path that it was given, which may be empty.
using NamedPath = std::pair<std::string, std::string>;

/// Refuses an output that is one of the others, also by way of a link, or a file that is read with
/// one that is a model's or an adapter's folder, before anything is written.
void refuse_same_file(const NamedPath& output, const std::vector<NamedPath>& others);

}  // namespace cli
