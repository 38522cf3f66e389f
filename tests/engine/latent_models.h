// SPDX-License-Identifier: Apache-2.0
// Which oracles have latent attention.
#pragma once

#include <string>

namespace vitrine::testing {

/// True for the name of an oracle with latent attention.
inline bool is_latent(const std::string& name) {
  return name.starts_with("deepseek") || name == "glm4_moe_lite";
}

}  // namespace vitrine::testing
