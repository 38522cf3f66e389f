// SPDX-License-Identifier: Apache-2.0
// Says what this build is, for `vitrine --version`.
#pragma once

#include <string>
#include <string_view>

namespace cli {

/// A line each: version, commit, compiler, instruction set of the kernels on this processor,
/// libtorch, CUDA.
std::string build_facts();

/// Returns the commit that this build was made of.
std::string build_commit();

/// "avx2; AVX-512 without VNNI is not used": an instruction set of the CPU's kernels, and what the
/// processor has beside.
std::string with_unused_features(std::string_view isa);

}  // namespace cli
