// SPDX-License-Identifier: Apache-2.0
// The room `engine`: a model's first layers guess for all of them.
#pragma once

#include <memory>

#include "vitrine/drafter.h"
#include "vitrine/engine.h"

namespace vitrine {

/// Behind which layers a model guesses.
struct EarlyExitOptions {
  int layers = 1;  ///< that guess: the first ones, 1 to ModelSummary::num_layers - 1
  /// So many layers, more than `layers` and fewer than all, check runs of up to four guesses, put
  /// their own choice in the place of the first that is wrong, and let it go on from there. 0: all
  /// guesses go to the whole model at once.
  int checking_layers = 0;
};

/// A drafter that is the model itself: what its head chooses greedily of what leaves its first
/// layers (LayerSkip, arXiv 2404.16710), checked by some more of them where that is asked for
/// (HiSpec, arXiv 2510.01336). It guesses chains. It works in the sequence of the answer
/// (DraftText::sequence), which has its own keys and values there already and is as it was
/// afterwards. The step that follows goes on behind these layers with the same bits, where every
/// input of it was guessed so, and the guesses fit into the block of keys and values that is begun;
/// not with attribution, taps, naive records, or records of the reference path.
///
/// The engine must be the one that makes the answers, and stay as long as the drafter. It follows
/// any number of texts, and forks none. Throws kInvalidArgument for layers out of range,
/// kUnsupported for CUDA's fused kernels and for a model that keeps a state of a sequence.
VITRINE_API std::unique_ptr<Drafter> make_early_exit(Engine& engine,
                                                     const EarlyExitOptions& options);

}  // namespace vitrine
