// SPDX-License-Identifier: Apache-2.0
#include "separation.h"

#include <algorithm>
#include <vector>

namespace vitrine::compress {
namespace {

constexpr size_t kShingle = 5;   // ids of a run by which texts are alike
constexpr size_t kWindow = 512;  // ids of a window of the evaluation
constexpr uint64_t kPrime = 0x9E3779B97F4A7C15u;

uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

uint64_t hash_of(std::span<const int32_t> ids) {
  uint64_t hash = kPrime;
  for (const int32_t id : ids) hash = mixed(hash ^ (static_cast<uint64_t>(id) + kPrime));
  return hash;
}

}  // namespace

void Separation::add_evaluation(std::span<const int32_t> ids) {
  for (size_t i = 0; i + kRun <= ids.size(); ++i) runs_.insert(hash_of(ids.subspan(i, kRun)));
  for (size_t begin = 0; begin + kShingle <= ids.size(); begin += kWindow / 2) {
    sketches_.push_back(sketch(ids.subspan(begin, std::min(kWindow, ids.size() - begin))));
  }
}

int64_t Separation::shared_tokens(std::span<const int32_t> ids) const {
  int64_t shared = 0;
  size_t counted = 0;  // ids before this one are
  for (size_t i = 0; i + kRun <= ids.size(); ++i) {
    if (!runs_.contains(hash_of(ids.subspan(i, kRun)))) continue;
    const size_t from = std::max(counted, i);
    shared += static_cast<int64_t>(i + kRun - from);
    counted = i + kRun;
  }
  return shared;
}

Separation::Sketch Separation::sketch(std::span<const int32_t> ids) {
  Sketch least(kPermutations, UINT32_MAX);
  for (size_t i = 0; i + kShingle <= ids.size(); ++i) {
    const uint64_t hash = hash_of(ids.subspan(i, kShingle));
    for (size_t p = 0; p < kPermutations; ++p) {
      const auto value = static_cast<uint32_t>(mixed(hash + p * kPrime) >> 32);
      least[p] = std::min(least[p], value);
    }
  }
  return least;
}

double Separation::largest_likeness(std::span<const int32_t> ids) const {
  if (ids.size() < kShingle) return 0;
  const Sketch own = sketch(ids);
  size_t most = 0;
  for (const Sketch& other : sketches_) {
    size_t same = 0;
    for (size_t p = 0; p < kPermutations; ++p) same += own[p] == other[p];
    most = std::max(most, same);
  }
  return static_cast<double>(most) / kPermutations;
}

}  // namespace vitrine::compress
