// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters in the layout of PEFT: adapter_config.json and adapter_model.safetensors.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/adapter_folds.h"
#include "model/weights.h"
#include "ops/adapters.h"

namespace vitrine::model {

/// Adapters for one model, read whole. Throws kIo, kBadFile (a tensor of another rank or shape, a
/// target module that the model lacks, half of a pair), kUnsupported (another kind of adapter,
/// other modules as targets, trained biases, magnitudes), and what AdapterFolds throws: of a folder
/// whose norms were folded, adapters that were trained on its source are folded, too. Immutable.
class LoraAdapters final : public ops::AdapterWeights {
 public:
  /// `sum` names adapters and scales that make one more behind those of `folders`, unless it is
  /// empty. `tiled`: the matrices stand in the tiles that the CPU's kernels are fastest with
  /// (kernels/cpu/cpu_kernels.h); else their rows stand as in the file.
  LoraAdapters(const std::vector<std::string>& folders,
               std::span<const std::pair<std::string, float>> sum, const Checkpoint& checkpoint,
               const ops::Graph& graph, bool tiled = false);

  int32_t size() const override { return static_cast<int32_t>(adapters_.size()); }
  const ops::LowRankMatrix* find(int32_t adapter, const std::string& module) const override;
  uint64_t num_bytes() const { return num_bytes_; }
  int64_t num_parameters() const { return num_parameters_; }

 private:
  using Matrices = std::map<std::string, ops::LowRankMatrix>;
  using Targets = std::map<std::string, const ops::OpMatrix*>;  // by module
  Matrices load(const std::string& adapter, const Targets& targets, WeightMemory& memory,
                bool tiled) const;
  Matrices load_sum(std::span<const std::pair<std::string, float>> parts, const Targets& targets);
  void count(const Matrices& matrices);

  WeightMemory memory_;
  AdapterFolds folds_;
  bool tiled_;
  std::vector<Matrices> adapters_;
  uint64_t num_bytes_ = 0;
  int64_t num_parameters_ = 0;
};

}  // namespace vitrine::model
