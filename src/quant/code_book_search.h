// SPDX-License-Identifier: Apache-2.0
// Private to the room: values as entries of the code books of IQ2 and IQ3, signs apart.
#pragma once

#include <bit>
#include <limits>
#include <numeric>
#include <vector>

#include "code_book_values.h"
#include "scale_search.h"

namespace vitrine::quant {

/// Finds entries of a book. `Form` has kBook (entries of bytes, the first value in the lowest) and
/// kLevels (the magnitudes that occur in them, ascending).
template <typename Form>
class EntryFinder {
 public:
  using Entry = typename std::remove_cvref_t<decltype(Form::kBook)>::value_type;
  static constexpr size_t kValues = sizeof(Entry);

  static const EntryFinder& get() {
    static const EntryFinder finder;
    return finder;
  }

  /// The number of the entry of the least weighted error for magnitudes x ~ scale * entry. Looked
  /// at are those that lie nearest to the magnitudes' own levels, without weights.
  size_t nearest(const float* magnitudes, const float* weights, float scale) const {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    size_t point = 0;
    for (size_t i = kValues; i-- > 0;) {
      const float value = magnitudes[i] * inverse;
      size_t level = 0;
      for (size_t n = 1; n < kNumLevels; ++n) {
        level += 2 * value > static_cast<float>(Form::kLevels[n - 1] + Form::kLevels[n]) ? 1 : 0;
      }
      point = point * kNumLevels + level;
    }
    // An entry of each value's own nearest level is better than all others.
    if (exact_[point] != kNone) return exact_[point];
    const uint16_t* near = near_.data() + point * kNear;
    float least = std::numeric_limits<float>::max();
    size_t best = near[0];
    for (size_t n = 0; n < kNear; ++n) {
      const float* entry = values_.data() + near[n] * kValues;
      float error = 0;
      for (size_t i = 0; i < kValues; ++i) {
        const float off = scale * entry[i] - magnitudes[i];
        error += weights[i] * off * off;
      }
      if (error >= least) continue;
      least = error;
      best = near[n];
    }
    return best;
  }

  /// The magnitudes of an entry.
  const float* values(size_t entry) const { return values_.data() + entry * kValues; }

 private:
  static constexpr size_t kNumLevels = std::size(Form::kLevels);
  static constexpr size_t kNear = 32;
  static constexpr uint16_t kNone = 0xffff;

  EntryFinder() {
    size_t points = 1;
    for (size_t i = 0; i < kValues; ++i) points *= kNumLevels;
    for (const Entry entry : Form::kBook) {
      for (size_t i = 0; i < kValues; ++i) {
        values_.push_back(static_cast<float>(entry >> (8 * i) & 255));
      }
    }
    exact_.resize(points);
    near_.resize(points * kNear);
    std::vector<uint32_t> numbers(std::size(Form::kBook));
    std::vector<float> distances(numbers.size());
    for (size_t point = 0; point < points; ++point) {
      std::array<float, kValues> levels;
      for (size_t i = 0, rest = point; i < kValues; ++i, rest /= kNumLevels) {
        levels[i] = static_cast<float>(Form::kLevels[rest % kNumLevels]);
      }
      for (size_t n = 0; n < numbers.size(); ++n) {
        distances[n] = 0;
        for (size_t i = 0; i < kValues; ++i) {
          const float off = values_[n * kValues + i] - levels[i];
          distances[n] += off * off;
        }
      }
      std::iota(numbers.begin(), numbers.end(), 0U);
      const auto is_nearer = [&](uint32_t a, uint32_t b) {
        return distances[a] != distances[b] ? distances[a] < distances[b] : a < b;
      };
      std::partial_sort(numbers.begin(), numbers.begin() + kNear, numbers.end(), is_nearer);
      exact_[point] = distances[numbers[0]] == 0 ? static_cast<uint16_t>(numbers[0]) : kNone;
      std::copy_n(numbers.begin(), kNear, near_.begin() + static_cast<ptrdiff_t>(point * kNear));
    }
  }

  std::vector<float> values_;    // [entries, kValues]
  std::vector<uint16_t> exact_;  // by point of the levels: the entry there
  std::vector<uint16_t> near_;   // [points, kNear], the nearest first
};

/// The magnitudes that occur in the books of IQ2.
inline constexpr uint8_t kIq2Magnitudes[3] = {kernels::kIq2Levels[0], kernels::kIq2Levels[1],
                                              kernels::kIq2Levels[2]};

/// Writes four times seven signs and a scale of four bits.
inline void put_signs_and_scale(const uint8_t* signs, int whole, std::byte* out) {
  auto word = static_cast<uint32_t>(whole) << 28;
  for (size_t i = 0; i < 4; ++i) word |= (signs[i] & 127U) << (7 * i);
  for (size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(word >> (8 * i) & 255);
}

/// The numbers of a group of a block: entries in order, and a byte of signs for eight values.
template <int64_t width, size_t values>
struct EntryCodes {
  std::array<uint16_t, static_cast<size_t>(width) / values> entries{};
  std::array<uint8_t, static_cast<size_t>(width) / 8> signs{};
};

/// The book of a format: scales are odd multiples, 1 to 31, of kStep. `Form` also has kWidth
/// (values of a scale), kStep, and kHasEvenSigns: of eight signs seven are stored, an even number
/// is set.
template <typename Form>
struct SignedEntries {
  using Finder = EntryFinder<Form>;
  static constexpr int64_t kWidth = Form::kWidth;
  static constexpr bool kHasSign = false;  // the signs of values do
  static constexpr int kLeast = 0, kMost = 15;
  static constexpr int kBeginnings = 21;
  using Codes = EntryCodes<kWidth, Finder::kValues>;

  static float multiplier(int whole) { return Form::kStep * static_cast<float>(2 * whole + 1); }
  static int whole_of(float multiplier) {
    return nearest_level((multiplier / Form::kStep - 1) / 2, kLeast, kMost);
  }
  /// From a sixth below the largest level to a third above it.
  static float beginning(int i) {
    return Form::kLevels[std::size(Form::kLevels) - 1] * (0.84F + 0.025F * static_cast<float>(i));
  }
  static void nearest(const float* values, const float* weights, float scale, float* entries) {
    find(values, weights, scale, entries, nullptr);
  }
  static Codes codes(const float* values, const float* weights, float scale) {
    std::array<float, static_cast<size_t>(kWidth)> entries;
    Codes codes;
    find(values, weights, scale, entries.data(), &codes);
    return codes;
  }

 private:
  static void find(const float* values, const float* weights, float scale, float* entries,
                   Codes* codes) {
    const Finder& finder = Finder::get();
    for (size_t eight = 0; eight < static_cast<size_t>(kWidth) / 8; ++eight) {
      const float* own = values + 8 * eight;
      uint32_t signs = signs_of(own, weights + 8 * eight, scale);
      std::array<float, 8> magnitudes;
      for (size_t i = 0; i < 8; ++i) magnitudes[i] = (signs >> i & 1) != 0 ? -own[i] : own[i];
      for (size_t at = 0; at < 8; at += Finder::kValues) {
        const size_t entry =
            finder.nearest(magnitudes.data() + at, weights + 8 * eight + at, scale);
        if (codes != nullptr) {
          codes->entries[(8 * eight + at) / Finder::kValues] = static_cast<uint16_t>(entry);
        }
        for (size_t i = 0; i < Finder::kValues; ++i) {
          const float level = finder.values(entry)[i];
          entries[8 * eight + at + i] = (signs >> (at + i) & 1) != 0 ? -level : level;
        }
      }
      if (codes != nullptr) codes->signs[eight] = static_cast<uint8_t>(signs);
    }
  }

  /// The values' own signs; of an odd number that one is turned which costs least.
  static uint32_t signs_of(const float* values, const float* weights, float scale) {
    uint32_t signs = 0;
    for (size_t i = 0; i < 8; ++i) signs |= (values[i] < 0 ? 1U : 0U) << i;
    if (!Form::kHasEvenSigns || std::popcount(signs) % 2 == 0) return signs;
    const float low = scale * static_cast<float>(Form::kLevels[0]);
    float least = std::numeric_limits<float>::max();
    size_t turned = 0;
    for (size_t i = 0; i < 8; ++i) {
      const float size = std::fabs(values[i]);
      // Turned, a value is at the lowest level of the other side; else at the lowest or better.
      const float now = size < low ? low - size : 0;
      const float cost = weights[i] * ((size + low) * (size + low) - now * now);
      if (cost >= least) continue;
      least = cost;
      turned = i;
    }
    return signs ^ 1U << turned;
  }
};

}  // namespace vitrine::quant
