// SPDX-License-Identifier: Apache-2.0
// Where the tests' data is: a folder of the build (tests/CMakeLists.txt), or where
// VITRINE_TEST_DATA says (scripts/gpu-session).
#pragma once

#include <string>

namespace vitrine::testing_support {

/// The path of a file or folder of the tests' data.
std::string test_data(const std::string& name);
/// The shipped int4 model, or where VITRINE_TEST_MODEL says.
std::string shipped_model();

}  // namespace vitrine::testing_support
