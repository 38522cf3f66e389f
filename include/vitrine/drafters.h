// SPDX-License-Identifier: Apache-2.0
// The room `engine`: who guesses tokens ahead with a model's help: another model, trained heads, a
// part of the model's own layers, a layer that was trained for it. (drafter.h is the interface,
// speculate.h has those that look the text up.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/drafter.h"
#include "vitrine/engine.h"
#include "vitrine/model.h"

namespace vitrine {

// ---- another model ------------------------------------------------------------------------------

/// How two vocabularies go together.
struct VocabularyOverlap {
  bool is_same = false;      ///< every id that both have is the same token
  int64_t draft_tokens = 0;  ///< tokens of the draft model's vocabulary
  int64_t common = 0;  ///< the draft model's tokens that the target has, too, under whatever id
  /// Returns the share of common tokens; 0 where there is none.
  double share() const {
    return draft_tokens > 0 ? static_cast<double>(common) / static_cast<double>(draft_tokens) : 0;
  }
};
/// Compares the spelling of all tokens.
VITRINE_API VocabularyOverlap compare_vocabularies(const Tokenizer& draft, const Tokenizer& target);

/// Makes a drafter of a model: it guesses what `draft` chooses greedily, all texts of a step in the
/// same passes. Where the vocabularies differ, what it is shown is spelt by its own tokenizer, and
/// what it chooses by that of the target. It follows as many texts as `draft` may have sequences
/// (EngineOptions::max_sequences), each up to its context. `target` must stay as long as the
/// drafter. An engine whose draft_kv_bytes is set takes guesses only of a `draft` that was loaded
/// with no more kv_bytes (draft_model_options()). Throws kInvalidArgument where the vocabularies
/// have no token in common.
VITRINE_API std::unique_ptr<Drafter> make_draft_model(Model draft, const Tokenizer& target);

/// Returns options to load the draft model at `path` with, beside an engine of the options
/// `target`: its device, kernels, number of threads and sequences, its context as far as the draft
/// model has that, and its draft_kv_bytes as kv_bytes. Threads are shared where the host names them
/// (EngineOptions::shared_threads). Throws kOutOfMemory where draft_kv_bytes is less than a block
/// of keys and values, kInvalidArgument for a path where no model is, and what reading it throws.
VITRINE_API EngineOptions draft_model_options(const std::string& path, const EngineOptions& target);

// ---- heads --------------------------------------------------------------------------------------

/// How heads are read.
struct DraftHeadOptions {
  /// The layers for which the heads read the residual stream that enters them, in the order in
  /// which they take it; the number of layers stands for what leaves the last one. Empty: those
  /// that their config names, else 2, half of the model's depth, and the depth less 3. Medusa reads
  /// what leaves the last layer, and nothing else.
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
/// that engine's other threads share the work on the CPU's fused path, which changes no guess. For
/// each text they keep its tokens, their own keys and values of max_tokens positions, and the
/// features of its newest positions; start() and fork() alone allocate these.
///
/// Throws kInvalidArgument for another name, a folder that is not there, or layers that the model
/// does not have; kBadFile where files break their format or were made for another model (hidden
/// size, vocabulary, depth); kUnsupported for other heads (EAGLE-1, EAGLE-2, …), a pickle, or
/// acceptance that would change the text; kIo.
VITRINE_API std::unique_ptr<Drafter> make_head_drafter(std::string_view name,
                                                       const std::string& heads,
                                                       const std::string& model,
                                                       const DraftHeadOptions& options = {});

// ---- a part of the layers -----------------------------------------------------------------------

/// Behind which layers a model guesses.
struct EarlyExitOptions {
  int layers = 1;  ///< how many of the first layers guess: 1 to ModelSummary::num_layers - 1
  /// How many of the first layers check guesses, more than `layers` and fewer than all. They check
  /// runs of up to four guesses and put their own choice in the place of the first one that is
  /// wrong; guessing goes on from there. 0: all guesses go to the whole model at once.
  int checking_layers = 0;
};

/// Makes a drafter of the model itself: its head chooses greedily from what leaves its first layers
/// (LayerSkip, arXiv 2404.16710), and some more layers check the guesses where that is asked for
/// (HiSpec, arXiv 2510.01336). It guesses chains. It works in the answer's own sequence
/// (DraftText::sequence), where keys and values are already, and leaves it as it was. The step that
/// follows goes on behind these layers, with the same bits, where every input of it was guessed so
/// and the guesses fit into the block of keys and values that is begun. With attribution, taps,
/// naive records, or records of the reference path it runs all layers.
///
/// The engine must be the one that makes the answers, and stay as long as the drafter. The drafter
/// follows any number of texts, and forks none. Throws kInvalidArgument for layers out of range,
/// kUnsupported for CUDA's fused kernels and for a model that keeps a state of a sequence.
VITRINE_API std::unique_ptr<Drafter> make_early_exit(Engine& engine,
                                                     const EarlyExitOptions& options);

// ---- a layer that drafts ------------------------------------------------------------------------

/// Makes a drafter of the MTP layers of the target's own checkpoint. For the first guess, what left
/// the target's last layer at a token and the embedding of the token behind it go through one more
/// decoder layer, which has its own keys and values, and through the target's head or its own. For
/// the next guess the next such layer reads what the one before gave and the embedding of the token
/// one further behind (DeepSeek-V3, arXiv 2412.19437); the last one goes on with its own output. In
/// Qwen's families the first layer makes all guesses. It reads folders and GGUF files (`nextn`) of
/// deepseek_v3, kimi_k2, glm4_moe, glm4_moe_lite, qwen3_next, qwen3_5 and qwen3_5_moe.
///
/// `path` is the target's, and `target` the options that it runs with: their threads, context and
/// sequences count, mmap_weights and draft_kv_bytes, of which each layer has an equal part. The
/// layers run on the CPU's fused kernels; embedding and head are in memory once more for each, or
/// mapped. Throws kInvalidArgument for a checkpoint without such a layer, kUnsupported for another
/// family, kOutOfMemory where draft_kv_bytes is less than a block of each layer, and as
/// Engine::load() does.
VITRINE_API std::unique_ptr<Drafter> make_mtp_drafter(const std::string& path,
                                                      const EngineOptions& target);
/// Returns the bytes of keys and values with which each of the target's sequences can reach its
/// context in these layers. Throws as make_mtp_drafter(), but reads no weights.
VITRINE_API uint64_t mtp_kv_bytes(const std::string& path, const EngineOptions& target);

}  // namespace vitrine
