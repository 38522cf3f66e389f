// SPDX-License-Identifier: Apache-2.0
// Architectures: from a config to a graph of ops. One file each, one registration.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/unique_name.h"
#include "ops/graph.h"
#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// To add an architecture, write one file that ends with VITRINE_REGISTER_ARCHITECTURE.
struct Architecture {
  std::string_view model_type;  // as in config.json
  ops::Graph (*build)(const ModelConfig& config) = nullptr;
};

/// Throws kUnsupported naming the ones there are.
const Architecture& find_architecture(const std::string& model_type, const std::string& file);
std::vector<std::string> architecture_names();
bool register_architecture(const Architecture& architecture);

#define VITRINE_REGISTER_ARCHITECTURE(architecture)                              \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(architecture_is_registered_) = \
      register_architecture(architecture)

}  // namespace vitrine::model
