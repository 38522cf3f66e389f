// SPDX-License-Identifier: Apache-2.0
// The one file of the tests that knows where the build is: a compiler cache finds all others, from
// whichever folder they were compiled.
#include "tests/support/test_data.h"

#include <cstdlib>

namespace vitrine::testing_support {
namespace {

std::string moved(const char* variable, const char* built) {
  const char* given = std::getenv(variable);
  return given != nullptr ? given : built;
}

}  // namespace

std::string test_data(const std::string& name) {
  return moved("VITRINE_TEST_DATA", VITRINE_TEST_DATA_DIR) + "/" + name;
}

std::string shipped_model() { return moved("VITRINE_TEST_MODEL", VITRINE_MODEL_DIR); }

}  // namespace vitrine::testing_support
