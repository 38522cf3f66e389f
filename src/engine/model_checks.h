// What is looked at once when a model is loaded, before its weights.
#pragma once

#include "vitrine/checkpoint.h"

namespace vitrine::engine {

/// A config with fewer layers than the files have is another model's, or was edited. Throws
/// kBadFile.
void require_no_further_layer(const Checkpoint& checkpoint, const ModelConfig& config);

/// Logs one line on matrices whose blocks no fused kernel reads: they run as the float32 that they
/// mean. Where `strict`, throws it as kUnsupported.
void report_float_blocks(const Checkpoint& checkpoint, bool strict);

}  // namespace vitrine::engine
