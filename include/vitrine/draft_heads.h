// SPDX-License-Identifier: Apache-2.0
// The room `draft_heads`: drafters that are published as heads over a model's residual stream.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/drafter.h"

namespace vitrine {

/// How heads are read.
struct DraftHeadOptions {
  /// The layers whose residual stream, as it enters them, the heads read, in the order in which
  /// they take them (the number of layers: what leaves the last one). Empty: those that their
  /// config names, else 2, half of the model's depth, and the depth less 3. Medusa reads what
  /// leaves the last layer, and nothing else.
  std::vector<int> layers = {};
};

/// The names that make_head_drafter() knows, ascending: "eagle3", "medusa", "peagle".
VITRINE_API std::vector<std::string> draft_head_names();

/// Loads heads from the folder `heads` for the model at the path `model`. Engine options of that
/// model need feature_layers as Drafter::feature_layers() has them.
///
/// `eagle3`: EAGLE-3 (Li et al., arXiv 2503.01840) as SafeAILab, SpecForge and PyPI's `speculators`
/// write it. `peagle`: P-EAGLE (arXiv 2602.01469), as the last two. `medusa`: Medusa (Cai et al.,
/// arXiv 2401.10774) as vLLM reads it. All guess the likeliest chain, or tree
/// (DraftProposal::parents), on the thread that asks; in an engine's answers (generate, Generation)
/// that engine's other threads share the work on the CPU's fused path, which changes no guess. Of a
/// text they keep its tokens, keys and values of their own for max_tokens of it, and the features
/// of its newest positions: all of that is allocated by start() and fork() alone.
///
/// Throws kInvalidArgument for another name, a folder that is not there, or layers that the model
/// does not have; kBadFile where files break their format or were made for another model (hidden
/// size, vocabulary, depth); kUnsupported for other heads (EAGLE-1, EAGLE-2, …), a pickle, or
/// acceptance that would change the text; kIo.
VITRINE_API std::unique_ptr<Drafter> make_head_drafter(std::string_view name,
                                                       const std::string& heads,
                                                       const std::string& model,
                                                       const DraftHeadOptions& options = {});

}  // namespace vitrine
