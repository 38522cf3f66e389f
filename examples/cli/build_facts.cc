// SPDX-License-Identifier: Apache-2.0
#include "build_facts.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

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
    return with_unused_features(vitrine::cpu_instruction_set());
  } catch (const vitrine::Error& error) {
    return error.what();
  }
}

/// Tells what a backend has; its library lies beside libvitrine.so where it was built.
std::string backend(const char* name, const char* fact) {
  Dl_info library{};
  std::error_code error;
  if (::dladdr(reinterpret_cast<const void*>(&vitrine::cpu_instruction_set), &library) == 0) {
    return "unknown";
  }
  const auto folder = std::filesystem::path(library.dli_fname).parent_path();
  return std::filesystem::exists(folder / name, error) ? fact : "no";
}

}  // namespace

std::string with_unused_features(std::string_view isa) {
  const std::string unused = vitrine::cpu_unused_features();
  return unused.empty() ? std::string(isa) : fmt::format("{}; {}", isa, unused);
}

std::string build_commit() { return VITRINE_COMMIT; }

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
      kernels(), backend("libvitrine_torch.so", VITRINE_TORCH_FACT),
      backend("libvitrine_cuda.so", VITRINE_CUDA_FACT));
}

}  // namespace cli
