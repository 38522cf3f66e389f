// SPDX-License-Identifier: Apache-2.0
// Private to the room: names of a layer's tensors in GGUF files with short convolutions, for the
// table of architectures.
#pragma once

#include <array>

#include "gguf_model.h"

namespace vitrine::checkpoint {

inline constexpr std::array kLfmLayerNames = {
    GgufName{"attn_norm.weight", "operator_norm.weight"},
    GgufName{"attn_q.weight", "self_attn.q_proj.weight"},
    GgufName{"attn_k.weight", "self_attn.k_proj.weight"},
    GgufName{"attn_v.weight", "self_attn.v_proj.weight"},
    GgufName{"attn_output.weight", "self_attn.out_proj.weight"},
    GgufName{"attn_q_norm.weight", "self_attn.q_layernorm.weight"},
    GgufName{"attn_k_norm.weight", "self_attn.k_layernorm.weight"},
    GgufName{"shortconv.conv.weight", "conv.conv.weight", /*is_convolution=*/true},
    GgufName{"shortconv.in_proj.weight", "conv.in_proj.weight"},
    GgufName{"shortconv.out_proj.weight", "conv.out_proj.weight"},
    GgufName{"ffn_norm.weight", "ffn_norm.weight"},
    GgufName{"ffn_gate.weight", "feed_forward.w1.weight"},
    GgufName{"ffn_up.weight", "feed_forward.w3.weight"},
    GgufName{"ffn_down.weight", "feed_forward.w2.weight"},
};

}  // namespace vitrine::checkpoint
