// SPDX-License-Identifier: Apache-2.0
// Families that need what is not here, and why they are refused.
#include "checkpoint/family.h"

namespace vitrine::model {
namespace {

[[maybe_unused]] const bool kPhiMoeIsKnown = checkpoint::register_family(
    {.model_types = {"phimoe"},
     .refusal = "another architecture: its experts are chosen by sparsemixer, its norms are "
                "LayerNorms, and its RoPE lists change with a text's length, so that a token would "
                "have two results"});

[[maybe_unused]] const bool kLlama4IsKnown = checkpoint::register_family(
    {.model_types = {"llama4_text", "llama4"},
     .wrappers = {{"llama4", false}},
     .refusal = "another architecture: its attention in chunks, the temperature of its queries and "
                "experts whose inputs are scaled are not supported"});

}  // namespace
}  // namespace vitrine::model
