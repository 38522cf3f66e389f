// SPDX-License-Identifier: Apache-2.0
// What is looked at once when a model is loaded, before its weights, and what of a step's input.
#pragma once

#include <span>

#include "checkpoint/model_config.h"
#include "engine/run/row_sampler.h"
#include "kv/block_pool.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// A config with fewer layers or experts than the files have is another model's, or was edited.
/// Throws kBadFile.
void require_no_surplus(const Checkpoint& checkpoint, const ModelConfig& config);

/// A GGUF file has matrices that are multiplied as the integers that they are.
bool has_packed_blocks(const Checkpoint& checkpoint);

/// Logs one line on matrices whose blocks no fused kernel reads: they run as the float32 that they
/// mean. Where `strict`, throws it as kUnsupported.
void report_float_blocks(const Checkpoint& checkpoint, bool strict);

/// Throws kInvalidArgument unless `adapter` is one of `count`, or -1.
void require_adapter(int adapter, int count);

/// What config and options, in which nothing is left open, say of a model.
void describe_model(const ModelConfig& config, const EngineOptions& options, ModelSummary& summary);

/// The tokens that a sequence with `past` others brings. Throws kInvalidArgument.
void check_step_tokens(const StepInput& input, int64_t past, int64_t max_context,
                       int64_t vocab_size);

/// All of a step's inputs, and whether there is room for them. Throws kInvalidArgument and
/// kOutOfMemory.
/// Throws kInvalidArgument where a layer has fewer positions of the sequence than it has.
void require_level(const kv::BlockPool& pool, SequenceId sequence);
void check_step(std::span<const StepInput> inputs, const kv::BlockPool& pool,
                const EngineOptions& options, int64_t vocab_size, const AuditLayout& layout,
                const RowSampler& row_sampler);

/// Throws kInvalidArgument where an input asks for a choice of a certain kind, of an engine that
/// has hidden states alone.
void require_no_choices(std::span<const StepInput> inputs);

/// Of a row from which a device chose nothing: kInvalidArgument where nothing was left, else
/// kInternal, with `where` its logits broke.
[[noreturn]] void refuse_choice(bool nothing_left, SequenceId sequence, int64_t position,
                                const std::string& where);

/// Where attribution needs a choice before the pass has ended. Throws kUnsupported.
[[noreturn]] void refuse_late_choice();

}  // namespace vitrine::engine
