// SPDX-License-Identifier: Apache-2.0
// What libtorch throws, as errors of ours.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace vitrine::backend_torch {

/// Throws kOutOfMemory where libtorch found no memory of the host or of a device, else kInternal.
/// `what` names what the reference path was doing, for the message.
[[noreturn]] void throw_as_ours(const c10::Error& error, const std::string& what);

/// Returns what `work` does. All that the engine makes libtorch do runs in one of these, so that no
/// exception of libtorch's leaves the library. `what()` names the work, for the message.
template <typename What, typename Work>
decltype(auto) with_own_errors(const What& what, const Work& work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    throw_as_ours(error, what());
  }
}

}  // namespace vitrine::backend_torch
