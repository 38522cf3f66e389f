// SPDX-License-Identifier: Apache-2.0
#include "evaluation/random.h"

#include <numeric>

namespace vitrine::evaluation {

Random::Random(uint64_t seed, std::string_view stream) : state_(0xCBF29CE484222325ULL) {
  // FNV-1a over the stream's name, so that neighbouring seeds and streams share nothing.
  for (const char byte : stream) {
    state_ = (state_ ^ static_cast<uint8_t>(byte)) * 0x100000001B3ULL;
  }
  state_ ^= seed * 0x9E3779B97F4A7C15ULL;
  state_ = next();
}

uint64_t Random::next() {
  uint64_t value = state_ += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

uint64_t Random::below(uint64_t count) {
  // Numbers of the last, incomplete run of `count` are drawn again.
  const uint64_t excess = (UINT64_MAX % count + 1) % count;
  while (true) {
    const uint64_t value = next();
    if (value <= UINT64_MAX - excess) return value % count;
  }
}

int64_t Random::between(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(below(static_cast<uint64_t>(most - least) + 1));
}

std::vector<size_t> Random::sample(size_t size, size_t count) {
  std::vector<size_t> places(size);
  std::iota(places.begin(), places.end(), size_t{0});
  for (size_t i = 0; i < count; ++i) std::swap(places[i], places[i + below(size - i)]);
  places.resize(count);
  return places;
}

std::string Random::text(std::string_view alphabet, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += alphabet[below(alphabet.size())];
  return text;
}

}  // namespace vitrine::evaluation
