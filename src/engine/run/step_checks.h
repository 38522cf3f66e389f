// SPDX-License-Identifier: Apache-2.0
// What is checked of a step's inputs before anything happens, and whether there is room for them.
#pragma once

#include <span>

#include "engine/run/draft_trees.h"
#include "engine/run/loaded_model.h"
#include "kv/block_pool.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Checks the inputs of a model's steps. All functions throw kInvalidArgument for an input that is
/// wrong. They allocate nothing but an error's text.
class StepChecks {
 public:
  /// Both must stay.
  StepChecks(const LoadedModel& model, const DraftTrees& trees) : model_(model), trees_(trees) {}

  /// Checks a step of all layers. Throws kOutOfMemory where blocks are missing, and kUnsupported
  /// for trees where the model runs none.
  void check(std::span<const StepInput> inputs) const;
  /// Checks a step of some layers, whose residual stream begins with `residual`. `records` says
  /// that somebody listens. Throws as check(), and kUnsupported for a model whose layers do not run
  /// by themselves.
  void check_layers(std::span<const StepInput> inputs, LayerRange layers,
                    std::span<const float> residual, bool records) const;

 private:
  void check_trees(std::span<const StepInput> inputs) const;
  void check_new_tokens(std::span<const StepInput> inputs) const;

  const LoadedModel& model_;
  const DraftTrees& trees_;
};

/// Throws kInvalidArgument for an id that the vocabulary does not have.
void require_token_ids(std::span<const int32_t> ids, int64_t vocab_size);
/// Throws kUnsupported where a part of the model's layers cannot run by itself.
void require_layers(const LoadedModel& model);
/// Throws kInvalidArgument for drafts and forced routes, which a host's step of some layers does
/// not take.
void require_plain(std::span<const StepInput> inputs);

/// Checks what an input says of choices: its mask, its guide, its forced tokens and its drafts.
/// Throws kInvalidArgument.
void check_choices(const StepInput& input, size_t vocab_size);

/// Throws kInvalidArgument for an input's mask that is not empty and has another size than the
/// vocabulary's.
void check_mask(const StepInput& input, std::span<const uint32_t> mask, size_t vocab_size);

/// Throws kInvalidArgument where the input's routes do not fit its tokens or the model's layers.
void check_forced_routes(const AuditLayout& layout, const StepInput& input);

/// Returns what a step would take, and what there is. Its blocks are those of the layers that have
/// the least left, all layers or those within a window. Allocates nothing. Throws kInvalidArgument
/// for a sequence that is unknown or stands twice, and for drafts that are no chain and no tree.
StepFit measure_step(std::span<const StepInput> inputs, const kv::BlockPool& pool,
                     const EngineOptions& options);

}  // namespace vitrine::engine
