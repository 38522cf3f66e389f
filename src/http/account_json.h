// SPDX-License-Identifier: Apache-2.0
// Records as replies have them.
#pragma once

#include <vector>

#include "http/account.h"

namespace vitrine::http {

/// SGLang's `routed_experts`: base64 of int32 [tokens, layers, top_k], all tokens that were
/// computed, in the order of positions, with this project's `routed_weights`, float32 of the same
/// shape, and the shape. Layers with fewer routes than others end with -1 and 0.
Json routed_experts_json(const std::vector<TokenRecord>& records,
                         const std::vector<AuditLayout::Layer>& sparse);

/// The account of each generated token: its surprise, what else could have come, the experts that
/// made it, and what a constraint ruled out.
Json account_json(const std::vector<TokenRecord>& records, const Tokenizer& tokenizer);

}  // namespace vitrine::http
