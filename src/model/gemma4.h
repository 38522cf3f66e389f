// SPDX-License-Identifier: Apache-2.0
// What the files of Gemma 4 hold, for its registration in gemma4.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/family.h"

namespace vitrine::model {

/// The fields that Gemma 4 alone has.
struct Gemma4Fields final : FamilyFields {
  bool double_wide_mlp = false;      ///< in the last layers, which read others' keys and values
  bool values_from_keys = false;     ///< k_proj makes the values of layers that do not slide
  int64_t per_layer_input_size = 0;  ///< elements of a token's vector for each layer; 0: no vectors
  int64_t per_layer_vocab_size = 0;  ///< rows of these vectors' table
  double final_logit_softcapping = 0;  ///< logits become cap * tanh(logit / cap); 0: they do not
};

/// Reads all behind the sizes of config.json. Throws kBadFile and kUnsupported naming the field.
void read_gemma4(const checkpoint::Fields& fields, ModelConfig& config);

/// Returns the forms of its GGUF files, without experts and with them.
std::vector<checkpoint::GgufArchitecture> gemma4_gguf_forms();

}  // namespace vitrine::model
