// Where the tests' data is: a folder of the build (tests/CMakeLists.txt), or where
// VITRINE_TEST_DATA says (scripts/bundle).
#pragma once

#include <cstdlib>
#include <string>

namespace vitrine::testing_support {

/// The path of a file or folder of the tests' data.
inline std::string test_data(const std::string& name) {
  const char* moved = std::getenv("VITRINE_TEST_DATA");
  return std::string(moved ? moved : VITRINE_TEST_DATA_DIR) + "/" + name;
}

}  // namespace vitrine::testing_support
