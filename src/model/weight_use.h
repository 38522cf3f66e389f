// SPDX-License-Identifier: Apache-2.0
// What the ops of a model, and of the layers behind it that draft, do with each of its tensors, for
// whoever stores weights in another format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "checkpoint/model_config.h"
#include "ops/graph.h"

namespace vitrine::model {

struct WeightUse {
  enum class Kind : uint8_t {
    kProduct,       ///< a matrix that rows are multiplied with, in any format
    kFloatProduct,  ///< the same, but quantizing leaves it as it is
    kTable,         ///< a matrix whose rows are looked up
    kVector,
  };
  Kind kind = Kind::kVector;
  std::string_view purpose;  ///< "router", "norm"; empty for kProduct
  std::string module;        ///< the matrix's; empty for a vector
};

/// Finds the use of each tensor of a checkpoint, and keeps nothing of the checkpoint.
class WeightUses {
 public:
  /// Throws what find_architecture() throws.
  WeightUses(const Checkpoint& checkpoint, const ModelConfig& config);
  /// Returns null for a tensor that no op reads. A tensor with two uses has the first one's: an
  /// embedding that is the head, too, is a table.
  const WeightUse* find(const std::string& tensor) const;

 private:
  void add_graph(const Checkpoint& checkpoint, const ops::Graph& graph);
  void add_matrix(const Checkpoint& checkpoint, const std::string& module, WeightUse::Kind kind,
                  std::string_view purpose);

  std::unordered_map<std::string, WeightUse> uses_;
};

}  // namespace vitrine::model
