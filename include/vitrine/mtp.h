// SPDX-License-Identifier: Apache-2.0
// The room `engine`: the layer of a checkpoint that was trained to guess (multi-token prediction).
#pragma once

#include <memory>
#include <string>

#include "vitrine/drafter.h"
#include "vitrine/engine.h"

namespace vitrine {

/// A drafter that is the MTP layers of the target's own checkpoint: what left the target's last
/// layer at a token and the embedding of the token behind it go through one more decoder layer,
/// with keys and values of its own, and the target's head or its own. For the next guess the next
/// layer reads what that one gave and the embedding of the token one further behind (DeepSeek-V3,
/// arXiv 2412.19437); the last one goes on with its own output. Of Qwen's families the first layer
/// makes all guesses. Folders and GGUF files (`nextn`) of deepseek_v3, kimi_k2, glm4_moe,
/// glm4_moe_lite, qwen3_next, qwen3_5 and qwen3_5_moe.
///
/// `path` is the target's, and `target` the options that it runs with: their threads, context and
/// sequences count, and mmap_weights. The layers run on the CPU's fused kernels; embedding and head
/// are in memory once more for each, or mapped. Throws kInvalidArgument for a checkpoint without
/// such a layer, kUnsupported for another family, and as Engine::load() does.
VITRINE_API std::unique_ptr<Drafter> make_mtp_drafter(const std::string& path,
                                                      const EngineOptions& target);

}  // namespace vitrine
