#include "block_format.h"

#include <algorithm>
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

void dequantize_blocks(const BlockFormat& format, const std::byte* blocks, int64_t num_blocks,
                       float* out) {
  if (format.dequantize != nullptr) return format.dequantize(blocks, num_blocks, out);
  constexpr int64_t kMostValues = 1024;
  int8_t values[kMostValues];
  float scales[kMostValues / kBlockGroup];
  const int64_t most_blocks = kMostValues / format.block_size;
  for (int64_t done = 0; done < num_blocks;) {
    const int64_t count = std::min(most_blocks, num_blocks - done);
    format.split(blocks + done * format.block_bytes, count, values, scales);
    for (int64_t i = 0; i < count * format.block_size; ++i) {
      *out++ = static_cast<float>(values[i]) * scales[i / kBlockGroup];
    }
    done += count;
  }
}

}  // namespace vitrine
