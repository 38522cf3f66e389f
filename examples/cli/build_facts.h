// SPDX-License-Identifier: Apache-2.0
// Says what this build is, for `vitrine --version`.
#pragma once

#include <string>

namespace cli {

/// A line each: version, commit, compiler, instruction set of the kernels on this processor,
/// libtorch, CUDA.
std::string build_facts();

}  // namespace cli
