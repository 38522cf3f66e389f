// SPDX-License-Identifier: Apache-2.0
#include "block_quantizer.h"

#include "core/registry.h"

namespace vitrine::quant {
namespace {

core::Registry<std::string, BlockQuantizer>& registered_quantizers() {
  static core::Registry<std::string, BlockQuantizer> quantizers("block quantizer");
  return quantizers;
}

}  // namespace

BlockQuantizerRegistration::BlockQuantizerRegistration(const BlockQuantizer& quantizer) {
  registered_quantizers().add(std::string(quantizer.name), quantizer);
}

const BlockQuantizer* find_block_quantizer(std::string_view name) {
  return registered_quantizers().find(std::string(name));
}

std::vector<BlockQuantizer> block_quantizers() { return registered_quantizers().entries(); }

}  // namespace vitrine::quant
