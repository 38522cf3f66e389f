// SPDX-License-Identifier: Apache-2.0
#include "build_facts.h"

#include <fmt/format.h>

#include "commit.h"  // made by cmake/VitrineCommit.cmake
#include "vitrine/engine.h"
#include "vitrine/version.h"

namespace cli {

namespace {

std::string compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

/// The kernels that run here; a variable that asks for others than this processor has is named.
std::string kernels() {
  try {
    return "TODO";
  } catch (const vitrine::Error& error) {
    return error.what();
  }
}

}  // namespace

std::string build_facts() {
  const std::string commit = VITRINE_COMMIT;
  return fmt::format(
      "vitrine   {}\n"
      "commit    {}\n"
      "compiler  {}, {}\n"
      "kernels   {}\n"
      "libtorch  {}\n"
      "CUDA      {}\n",
      VITRINE_VERSION, commit.empty() ? "unknown" : commit, compiler(), VITRINE_BUILD_TYPE,
      kernels(), VITRINE_TORCH, VITRINE_CUDA_FACT);
}

}  // namespace cli
