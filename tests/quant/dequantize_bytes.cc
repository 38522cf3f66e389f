// Dequantizes for the oracle test: blocks of one format in, float32 out, both as bytes.
//
//   dequantize_bytes            lists the formats: number, name, values and bytes of a block
//   dequantize_bytes NUMBER < blocks > floats
//
// Where the format is symmetric groups, the values times the scales of its split form must be the
// same bits; a difference ends the program with 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "vitrine/quant.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    for (const vitrine::BlockFormat& format : vitrine::block_formats()) {
      std::printf("%u %.*s %lld %lld %d\n", format.ggml_type, static_cast<int>(format.name.size()),
                  format.name.data(), static_cast<long long>(format.block_size),
                  static_cast<long long>(format.block_bytes), format.group_bits);
    }
    return 0;
  }
  const vitrine::BlockFormat* format =
      vitrine::find_block_format(static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10)));
  if (format == nullptr) return 2;
  std::vector<std::byte> blocks;
  std::vector<std::byte> buffer(1 << 16);
  for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), stdin)) > 0;) {
    blocks.insert(blocks.end(), buffer.begin(), buffer.begin() + static_cast<long>(count));
  }
  const auto num_blocks = static_cast<int64_t>(blocks.size()) / format->block_bytes;
  std::vector<float> values(static_cast<size_t>(num_blocks * format->block_size));
  vitrine::dequantize_blocks(*format, blocks.data(), num_blocks, values.data());
  if (format->group_bits != 0) {
    const int lowest = -(1 << (format->group_bits - 1));
    std::vector<int8_t> whole(values.size());
    std::vector<float> scales(values.size() / static_cast<size_t>(vitrine::kBlockGroup));
    format->split(blocks.data(), num_blocks, whole.data(), scales.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const float product =
          static_cast<float>(whole[i]) * scales[i / static_cast<size_t>(vitrine::kBlockGroup)];
      if (whole[i] < lowest || whole[i] >= -lowest ||
          (std::memcmp(&product, &values[i], sizeof(product)) != 0 && product == product)) {
        std::fprintf(stderr, "value %zu: the split form differs\n", i);
        return 1;
      }
    }
    for (float scale : scales) {
      if (scale != scale) continue;
      const float narrowed = format->scale_dtype == vitrine::DType::kF16
                                 ? vitrine::f16_to_float(vitrine::float_to_f16(scale))
                             : format->scale_dtype == vitrine::DType::kBF16
                                 ? vitrine::bf16_to_float(vitrine::float_to_bf16(scale))
                                 : scale;
      if (narrowed != scale) {
        std::fprintf(stderr, "scale %g is not exact in its dtype\n", static_cast<double>(scale));
        return 1;
      }
    }
  }
  return std::fwrite(values.data(), sizeof(float), values.size(), stdout) == values.size() ? 0 : 1;
}
