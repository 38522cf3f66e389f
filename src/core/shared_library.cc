// SPDX-License-Identifier: Apache-2.0
#include "core/shared_library.h"

#include <dlfcn.h>
#include <unistd.h>

namespace vitrine {
namespace {

std::string own_folder() {
  Dl_info info{};
  const bool is_known = dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0;
  const std::string path = is_known && info.dli_fname != nullptr ? info.dli_fname : "";
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

}  // namespace

void* find_library_symbol(const std::string& name, const char* symbol, int flags,
                          std::string& reason) {
  const std::string beside = own_folder() + name;
  void* library = dlopen(beside.c_str(), flags);
  if (library == nullptr) {
    reason = dlerror();
    library = dlopen(name.c_str(), flags);
    const char* problem = library == nullptr ? dlerror() : nullptr;
    // Why a library that is there cannot be loaded is of more use than where else none is.
    const bool is_beside = ::access(beside.c_str(), F_OK) == 0;
    if (problem != nullptr && !is_beside) reason = problem;
    if (library == nullptr) return nullptr;
  }
  void* found = dlsym(library, symbol);
  if (found == nullptr) reason = name + " is of another version";
  return found;
}

}  // namespace vitrine
