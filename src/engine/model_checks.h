// SPDX-License-Identifier: Apache-2.0
// What is looked at once when a model is loaded, before its weights.
#pragma once

#include "checkpoint/model_config.h"
#include "ops/graph.h"
#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Throws kBadFile for a config with fewer layers or experts than the files have: it is another
/// model's, or was edited.
void require_no_surplus(const Checkpoint& checkpoint, const ModelConfig& config);

/// Returns true for a GGUF file with matrices that are multiplied as the integers that they are.
bool has_packed_blocks(const Checkpoint& checkpoint);

/// Logs one line on matrices whose blocks no fused kernel reads: they run as the float32 that they
/// mean. Where `strict`, throws it as kUnsupported. `is_fused_cpu`: the CPU's fused kernels run,
/// which read blocks of modules of folders, too, and most matrices in the order of their columns.
void report_float_blocks(const Checkpoint& checkpoint, const ops::Graph& graph, bool strict,
                         bool is_fused_cpu);

/// Throws kInvalidArgument unless `adapter` is one of `count`, or -1.
void require_adapter(int adapter, int count);

/// Writes to `summary` what config and options, in which nothing is left open, say of a model.
void describe_model(const ModelConfig& config, const EngineOptions& options, ModelSummary& summary);

}  // namespace vitrine::engine
