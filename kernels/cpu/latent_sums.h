// SPDX-License-Identifier: Apache-2.0
// The sums of latent attention, in registers. A Table has kParts registers of kPartLanes for 16
// lanes. Internal linkage: each file has its own copy.
#pragma once

#include <cstdint>

namespace vitrine::kernels {
namespace {

constexpr int32_t kLatentLanes = 16;  // heads that are computed together

/// kRows sums of 16 lanes, each register by itself: the compiler keeps them there.
template <class Table, int kRows>
struct FloatSums {
  typename Table::FloatPart at[Table::kParts * kRows];

  __attribute__((always_inline)) void clear() {
#pragma GCC unroll 16
    for (int i = 0; i < Table::kParts * kRows; ++i) at[i] = Table::set_part(0.0f);
  }
  __attribute__((always_inline)) void load(const float (*from)[kLatentLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < Table::kParts * kRows; ++i) {
      at[i] = Table::load_part(from[i / Table::kParts] + i % Table::kParts * Table::kPartLanes);
    }
  }
  __attribute__((always_inline)) void store(float (*to)[kLatentLanes]) const {
#pragma GCC unroll 16
    for (int i = 0; i < Table::kParts * kRows; ++i) {
      Table::store_part(to[i / Table::kParts] + i % Table::kParts * Table::kPartLanes, at[i]);
    }
  }
  /// Adds lanes * number(row) to each row's.
  template <class Number>
  __attribute__((always_inline)) void add(const float* lanes, const Number& number) {
    typename Table::FloatPart factors[Table::kParts];
#pragma GCC unroll 2
    for (int part = 0; part < Table::kParts; ++part) {
      factors[part] = Table::load_part(lanes + part * Table::kPartLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto all = Table::set_part(number(i));
#pragma GCC unroll 2
      for (int part = 0; part < Table::kParts; ++part) {
        auto& sum = at[i * Table::kParts + part];
        sum = Table::fma_part(factors[part], all, sum);
      }
    }
  }
};

/// As FloatSums, of products of pairs of 16-bit integers.
template <class Table, int kRows>
struct IntegerSums {
  typename Table::IntegerPart at[Table::kParts * kRows];

  __attribute__((always_inline)) void clear() {
#pragma GCC unroll 16
    for (int i = 0; i < Table::kParts * kRows; ++i) at[i] = Table::set_part(int32_t{0});
  }
  __attribute__((always_inline)) void store(int32_t (*to)[kLatentLanes]) const {
#pragma GCC unroll 16
    for (int i = 0; i < Table::kParts * kRows; ++i) {
      Table::store_part(to[i / Table::kParts] + i % Table::kParts * Table::kPartLanes, at[i]);
    }
  }
  template <class Number>
  __attribute__((always_inline)) void add(const int32_t* lanes, const Number& number) {
    typename Table::IntegerPart factors[Table::kParts];
#pragma GCC unroll 2
    for (int part = 0; part < Table::kParts; ++part) {
      factors[part] = Table::load_part(lanes + part * Table::kPartLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto all = Table::set_part(number(i));
#pragma GCC unroll 2
      for (int part = 0; part < Table::kParts; ++part) {
        auto& sum = at[i * Table::kParts + part];
        sum = Table::dot_part(sum, factors[part], all);
      }
    }
  }
};

}  // namespace
}  // namespace vitrine::kernels
