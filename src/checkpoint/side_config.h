// SPDX-License-Identifier: Apache-2.0
// Private to the room: files beside config.json that say how a folder is quantized.
#pragma once

#include <memory>
#include <string>

#include "quantization_config.h"

namespace vitrine::checkpoint {

/// Reads what stands for a missing `quantization_config`: hf_quant_config.json (ModelOpt),
/// quantize_config.json (AutoGPTQ) or quant_config.json (AutoAWQ); null where there is none. Throws
/// kIo, kBadFile, kUnsupported.
std::unique_ptr<const QuantizationConfig> read_side_config(const std::string& folder);

}  // namespace vitrine::checkpoint
