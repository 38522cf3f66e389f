// SPDX-License-Identifier: Apache-2.0
// The library's messages in the tool's words: it names fields of C++, the tool has options.
#pragma once

#include <string>

namespace cli {

/// A message with options in the place of EngineOptions' and GenerateOptions' fields ("engine
/// option 'kv_bytes'" becomes "--kv-bytes").
std::string with_option_names(std::string message);

}  // namespace cli
