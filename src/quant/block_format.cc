#include "block_format.h"

#include <map>

namespace vitrine {
namespace quant {
namespace {

// Filled by static initialisers before main, only read afterwards: no lock.
std::map<uint32_t, BlockFormat>& registered_formats() {
  static std::map<uint32_t, BlockFormat> formats;
  return formats;
}

}  // namespace

BlockFormatRegistration::BlockFormatRegistration(const BlockFormat& format) {
  registered_formats().emplace(format.ggml_type, format);
}

}  // namespace quant

const BlockFormat* find_block_format(uint32_t ggml_type) {
  const auto& formats = quant::registered_formats();
  const auto found = formats.find(ggml_type);
  return found == formats.end() ? nullptr : &found->second;
}

std::vector<BlockFormat> block_formats() {
  std::vector<BlockFormat> formats;
  for (const auto& [number, format] : quant::registered_formats()) formats.push_back(format);
  return formats;
}

}  // namespace vitrine
