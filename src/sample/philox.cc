// SPDX-License-Identifier: Apache-2.0
#include "vitrine/sample.h"

namespace vitrine {

namespace {
constexpr uint32_t kMultiplier0 = 0xD2511F53u;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u;  // golden ratio
constexpr uint32_t kWeyl1 = 0xBB67AE85u;  // sqrt(3) - 1
constexpr int kRounds = 10;
}  // namespace

std::array<uint32_t, 4> philox4x32(uint64_t key, const std::array<uint32_t, 4>& counter) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> state = counter;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * state[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * state[2];
    state = {
        static_cast<uint32_t>(product1 >> 32) ^ state[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ state[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return state;
}

double philox_uniform(const SampleContext& context, uint32_t stage_id, uint32_t draw) {
  const uint64_t position = static_cast<uint64_t>(context.position);
  const uint32_t position_high = static_cast<uint32_t>(position >> 32);
  const std::array<uint32_t, 4> words = philox4x32(
      context.seed,
      {static_cast<uint32_t>(position), stage_id, context.branch, draw + (position_high << 16)});
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace vitrine
