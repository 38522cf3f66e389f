// SPDX-License-Identifier: Apache-2.0
// What a GGUF file says of a model that stands in a folder: the inverse of how such files are read.
#pragma once

#include <string>
#include <string_view>

#include "gguf_model.h"
#include "gguf_writer.h"
#include "model_config.h"

namespace vitrine::checkpoint {

/// Returns the form in which a model's files are written. Throws kUnsupported, naming what the
/// model has that is not written, or the families that are.
const GgufArchitecture& gguf_form_of(const Checkpoint& checkpoint, const ModelConfig& config);

/// Sets the keys of the model itself, `general.*` among them. `file_type` is llama.cpp's number of
/// what most tensors are.
void set_model_keys(const GgufArchitecture& form, const ModelConfig& config,
                    const std::string& name, uint32_t file_type, GgufWriter& writer);

/// Sets the keys of the tokenizer, chat template included. Throws kUnsupported for a tokenizer that
/// is no byte-level BPE, or cuts words as no file says it, kBadFile.
void set_tokenizer_keys(const Checkpoint& checkpoint, const ModelConfig& config,
                        GgufWriter& writer);

}  // namespace vitrine::checkpoint
