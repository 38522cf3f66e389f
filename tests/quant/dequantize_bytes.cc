// SPDX-License-Identifier: Apache-2.0
// Dequantizes for the oracle test: blocks of one format in, float32 out, both as bytes.
//
//   dequantize_bytes            lists the formats: number, name, values and bytes of a block
//   dequantize_bytes NUMBER < blocks > floats
//
// Where the kernels pack the format, the rows that they read from the packed form must be the same
// bits (a NaN any NaN, a zero any zero); a difference ends the program with 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "vitrine/quant.h"

namespace {

bool is_same(float a, float b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (a == 0 && b == 0) || (a != a && b != b);
}

/// As rows of 256 values.
bool packs_to(const std::vector<std::byte>& blocks, uint32_t number,
              const std::vector<float>& values) {
  namespace kernels = vitrine::kernels;
  constexpr int64_t kCols = 256;
  const auto format = static_cast<kernels::BlockFormat>(number);
  const auto rows = static_cast<int64_t>(values.size()) / kCols;
  kernels::Weight weight = kernels::block_weight(format, rows, kCols);
  const kernels::WeightBytes bytes = kernels::packed_bytes(weight);
  std::vector<std::byte> data(bytes.data), scales(bytes.scales), offsets(bytes.offsets);
  kernels::pack_blocks(format, weight, 0, rows, blocks.data(), data.data(), scales.data(),
                       bytes.offsets == 0 ? nullptr : offsets.data());
  weight.data = data.data();
  weight.scales = scales.data();
  if (bytes.offsets != 0) weight.offsets = offsets.data();
  std::vector<float> row(kCols);
  for (int64_t r = 0; r < rows; ++r) {
    kernels::portable_kernels().embed_row(weight, r, 1.0F, row.data());
    for (int64_t i = 0; i < kCols; ++i) {
      if (is_same(row[static_cast<size_t>(i)], values[static_cast<size_t>(r * kCols + i)]))
        continue;
      std::fprintf(stderr, "value %lld: the packed form differs\n",
                   static_cast<long long>(r * kCols + i));
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    for (const vitrine::BlockFormat& format : vitrine::block_formats()) {
      std::printf("%u %.*s %lld %lld\n", format.ggml_type, static_cast<int>(format.name.size()),
                  format.name.data(), static_cast<long long>(format.block_size),
                  static_cast<long long>(format.block_bytes));
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
  format->dequantize(blocks.data(), num_blocks, values.data());
  const uint32_t number = format->ggml_type;
  if (vitrine::kernels::has_block_format(number) && !packs_to(blocks, number, values)) return 1;
  return std::fwrite(values.data(), sizeof(float), values.size(), stdout) == values.size() ? 0 : 1;
}
