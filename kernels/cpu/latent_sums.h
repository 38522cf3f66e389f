// SPDX-License-Identifier: Apache-2.0
// The sums of latent attention, in registers. A Table has kParts registers of kPartLanes for 16
// lanes, of floats and of pairs of 16-bit integers. Internal linkage: each file has its own copy.
#pragma once

#include <cstdint>

namespace vitrine::kernels {
namespace {

constexpr int32_t kLatentLanes = 16;  // heads that are computed together

/// Holds kRows sums of 16 lanes, each register by itself: the compiler keeps them there. Number is
/// float, or int32_t for products of pairs of 16-bit integers.
template <class Table, class Number, int kRows>
struct LaneSums {
  using Part = decltype(Table::set_part(Number{}));
  static constexpr int kParts = Table::kParts;
  Part at[kParts * kRows];

  __attribute__((always_inline)) void clear() {
#pragma GCC unroll 16
    for (int i = 0; i < kParts * kRows; ++i) at[i] = Table::set_part(Number{});
  }
  __attribute__((always_inline)) void load(const Number (*from)[kLatentLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < kParts * kRows; ++i) {
      at[i] = Table::load_part(from[i / kParts] + i % kParts * Table::kPartLanes);
    }
  }
  __attribute__((always_inline)) void store(Number (*to)[kLatentLanes]) const {
#pragma GCC unroll 16
    for (int i = 0; i < kParts * kRows; ++i) {
      Table::store_part(to[i / kParts] + i % kParts * Table::kPartLanes, at[i]);
    }
  }
  /// Adds lanes * number(row) to each row's.
  template <class NumberOf>
  __attribute__((always_inline)) void add(const Number* lanes, const NumberOf& number) {
    Part factors[kParts];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      factors[part] = Table::load_part(lanes + part * Table::kPartLanes);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Part all = Table::set_part(number(i));
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
        Part& sum = at[i * kParts + part];
        sum = Table::add_product(factors[part], all, sum);
      }
    }
  }
};

/// A Table whose registers hold 16 lanes, as Base has them.
template <class Base>
struct WholeLanes : Base {
  static constexpr int32_t kRows = 8;
  static constexpr int kParts = 1, kPartLanes = kLatentLanes;
  using Lanes = typename Base::Lanes;
  using Integers = typename Base::Integers;

  __attribute__((always_inline)) static Lanes load_part(const float* x) { return Base::load(x); }
  __attribute__((always_inline)) static Integers load_part(const int32_t* x) {
    return Base::load_integers(x);
  }
  __attribute__((always_inline)) static void store_part(float* x, const Lanes& v) {
    Base::store(x, v);
  }
  __attribute__((always_inline)) static void store_part(int32_t* x, const Integers& v) {
    Base::store_integers(x, v);
  }
  __attribute__((always_inline)) static Lanes set_part(float x) { return Base::set(x); }
  __attribute__((always_inline)) static Integers set_part(int32_t x) {
    return Base::set_integers(x);
  }
  __attribute__((always_inline)) static Lanes add_product(const Lanes& a, const Lanes& b,
                                                          const Lanes& sum) {
    return Base::fma(a, b, sum);
  }
  __attribute__((always_inline)) static Integers add_product(const Integers& a, const Integers& b,
                                                             const Integers& sum) {
    return Base::dot(sum, a, b);
  }
};

}  // namespace
}  // namespace vitrine::kernels
