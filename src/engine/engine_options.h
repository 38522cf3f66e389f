// SPDX-License-Identifier: Apache-2.0
// What an engine's options mean for a model.
#pragma once

#include "checkpoint/model_config.h"
#include "ops/graph.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Replaces zeros by what they stand for and checks the rest; puts the probes and the adapters that
/// the options ask for into the graph. Throws kInvalidArgument (names option and range) and
/// kUnsupported.
EngineOptions resolve_options(EngineOptions options, const Checkpoint& checkpoint,
                              const ModelConfig& config, ops::Graph& graph);

/// Returns the config of a model that is only described: its own limit is raised to the context
/// that the options name where it is below that.
ModelConfig described_config(ModelConfig config, const EngineOptions& options);

/// Returns true where the options name a CUDA device and the fused kernels.
bool runs_fused_on_cuda(const EngineOptions& options);
/// Returns true where fused kernels run, on whatever device.
inline bool runs_fused(const EngineOptions& options) {
  return options.device.kind == DeviceKind::kCpu ? options.kernels != KernelPath::kReference
                                                 : runs_fused_on_cuda(options);
}

}  // namespace vitrine::engine
