// SPDX-License-Identifier: Apache-2.0
// Checks a server's options against the engine that it has.
#pragma once

#include "vitrine/serve.h"

namespace vitrine::serve {

/// Returns the options with what stands for defaults. Throws kInvalidArgument for one that is out
/// of range, or for which the engine has no room.
ServerOptions resolve_server_options(ServerOptions options, const EngineOptions& engine);

}  // namespace vitrine::serve
