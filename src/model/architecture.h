// SPDX-License-Identifier: Apache-2.0
// Architectures: what a family's files hold, and the graph of ops that its config becomes. One file
// each, one registration; docs/architecture.md says what such a file has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/family.h"
#include "core/unique_name.h"
#include "ops/graph.h"

namespace vitrine::model {

/// Layers that a checkpoint brings for drafts alone (multi-token prediction; draft_layer.h).
enum class DraftLayers : uint8_t {
  kNone,
  kDeepSeek,  ///< one or more; drafts go on with what left the layer
  kQwen,      ///< one; drafts go on with what its head reads
};

/// To add an architecture, write one file that ends with VITRINE_REGISTER_ARCHITECTURE.
struct Architecture {
  checkpoint::Family family;
  ops::Graph (*build)(const ModelConfig& config) = nullptr;
  DraftLayers drafts = DraftLayers::kNone;
};

/// Returns the architecture of a `model_type`; null where none is known.
const Architecture* lookup_architecture(std::string_view model_type);
/// Returns the architecture of a `model_type`. Throws kUnsupported naming the ones there are;
/// `file` is the config's name for the message.
const Architecture& find_architecture(const std::string& model_type, const std::string& file);
/// Builds the graph of a checkpoint's config. Throws what find_architecture() and the architecture
/// throw.
ops::Graph build_graph(const Checkpoint& checkpoint, const ModelConfig& config);
/// Returns the `model_type` of all, in the order of their names.
std::vector<std::string> architecture_names();
/// Makes an architecture known under each `model_type` of its family, and the family to the room
/// `checkpoint`. Called by static initialisers. Returns false where a name is taken.
bool register_architecture(const Architecture& architecture);

#define VITRINE_REGISTER_ARCHITECTURE(architecture)                              \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(architecture_is_registered_) = \
      register_architecture(architecture)

}  // namespace vitrine::model
