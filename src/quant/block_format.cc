// SPDX-License-Identifier: Apache-2.0
#include "block_format.h"

#include "core/registry.h"

namespace vitrine {
namespace quant {
namespace {

core::Registry<uint32_t, BlockFormat>& registered_formats() {
  static core::Registry<uint32_t, BlockFormat> formats("block format");
  return formats;
}

}  // namespace

BlockFormatRegistration::BlockFormatRegistration(const BlockFormat& format) {
  registered_formats().add(format.ggml_type, format);
}

}  // namespace quant

const BlockFormat* find_block_format(uint32_t ggml_type) {
  return quant::registered_formats().find(ggml_type);
}

std::vector<BlockFormat> block_formats() { return quant::registered_formats().entries(); }

}  // namespace vitrine
