// SPDX-License-Identifier: Apache-2.0
// Names of Gated DeltaNet's tensors in GGUF files, for the families that have such layers.
#pragma once

#include <array>
#include <span>

#include "gguf_model.h"

namespace vitrine::checkpoint {

/// Names of all such tensors. The first two are those of qwen3next alone, which groups by key head
/// (older files have `ssm_in` in place of `attn_qkv` and `attn_gate`); the last two are those of
/// the other families.
inline constexpr std::array kLinearNames = {
    GgufName{"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"},
    GgufName{"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
    GgufName{"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    GgufName{"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    GgufName{"ssm_conv1d.weight", "linear_attn.conv1d.weight", /*is_convolution=*/true},
    GgufName{"ssm_dt.bias", "linear_attn.dt_bias"},
    GgufName{"ssm_a", "linear_attn.A"},
    GgufName{"ssm_norm.weight", "linear_attn.norm.weight"},
    GgufName{"ssm_out.weight", "linear_attn.out_proj.weight"},
    GgufName{"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    GgufName{"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
};
inline constexpr auto kGroupedLinearNames = std::span(kLinearNames).first(kLinearNames.size() - 2);
inline constexpr auto kSingleLinearNames = std::span(kLinearNames).subspan(2);

}  // namespace vitrine::checkpoint
