// SPDX-License-Identifier: Apache-2.0
// Libraries of ours that are loaded when they are asked for, never linked.
#pragma once

#include <string>

namespace vitrine {

/// The symbol of library `name`, loaded with dlopen's `flags` from beside the library that holds
/// this function, else from wherever the loader looks. Null where there is none: `reason` says why.
void* find_library_symbol(const std::string& name, const char* symbol, int flags,
                          std::string& reason);

}  // namespace vitrine
