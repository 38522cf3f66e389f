// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet (Yang et al. 2024) for every instruction set's files: a table gives vectors of its
// own width, and each element of a vector does what docs/numerics.md says. Internal linkage: each
// file has its own copy.
#pragma once

#include "delta_kernels.h"

namespace vitrine::kernels {
namespace {

/// x / (1 + exp(-x)).
template <class Table>
inline typename Table::Lanes delta_silu(typename Table::Lanes x) {
  const auto e = Table::exp(Table::sub(Table::set(0.0f), x));
  return Table::div(x, Table::add(Table::set(1.0f), e));
}

template <class Table>
inline typename Table::Lanes delta_sigmoid(typename Table::Lanes x) {
  const auto one = Table::set(1.0f);
  return Table::div(one, Table::add(one, Table::exp(Table::sub(Table::set(0.0f), x))));
}

/// log(1 + exp(x)) as max(x, 0) + log1p(t), t = exp(-|x|); log1p(t) = 2 artanh(t / (2 + t)), of
/// whose series eight terms are enough for t <= 1.
template <class Table>
inline typename Table::Lanes delta_softplus(typename Table::Lanes x) {
  const auto zero = Table::set(0.0f);
  const auto magnitude = Table::max(x, Table::sub(zero, x));
  const auto t = Table::exp(Table::sub(zero, magnitude));
  const auto s = Table::div(t, Table::add(Table::set(2.0f), t));
  const auto z = Table::mul(s, s);
  auto p = Table::set(1.0f / 15.0f);
  p = Table::fma(p, z, Table::set(1.0f / 13.0f));
  p = Table::fma(p, z, Table::set(1.0f / 11.0f));
  p = Table::fma(p, z, Table::set(1.0f / 9.0f));
  p = Table::fma(p, z, Table::set(1.0f / 7.0f));
  p = Table::fma(p, z, Table::set(1.0f / 5.0f));
  p = Table::fma(p, z, Table::set(1.0f / 3.0f));
  p = Table::fma(p, z, Table::set(1.0f));
  return Table::add(Table::max(x, zero), Table::mul(Table::add(s, s), p));
}

template <class Table>
inline void delta_convolve(const float* const* inputs, const float* weights, int64_t weight_stride,
                           int32_t taps, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += Table::kWidth) {
    auto sum = Table::set(0.0f);
    for (int32_t j = 0; j < taps; ++j) {
      sum = Table::fma(Table::load(weights + j * weight_stride + i, n - i),
                       Table::load(inputs[j] + i, n - i), sum);
    }
    Table::store(out + i, delta_silu<Table>(sum), n - i);
  }
}

template <class Table>
inline void delta_gated_convolve(const float* const* inputs, const float* weights,
                                 int64_t weight_stride, int32_t taps, const float* bias,
                                 const float* gate, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += Table::kWidth) {
    auto sum = Table::set(0.0f);
    for (int32_t j = 0; j < taps; ++j) {
      sum = Table::fma(Table::load(weights + j * weight_stride + i, n - i),
                       Table::load(inputs[j] + i, n - i), sum);
    }
    if (bias != nullptr) sum = Table::add(sum, Table::load(bias + i, n - i));
    Table::store(out + i, Table::mul(Table::load(gate + i, n - i), sum), n - i);
  }
}

template <class Table>
inline void delta_gates(const float* a, const float* b, const float* bias, const float* rate,
                        int64_t n, float* decay, float* beta) {
  for (int64_t i = 0; i < n; i += Table::kWidth) {
    const auto x = Table::add(Table::load(a + i, n - i), Table::load(bias + i, n - i));
    const auto power = Table::mul(Table::load(rate + i, n - i), delta_softplus<Table>(x));
    Table::store(decay + i, Table::exp(power), n - i);
    Table::store(beta + i, delta_sigmoid<Table>(Table::load(b + i, n - i)), n - i);
  }
}

template <class Table>
inline void delta_l2_norm(float* x, float eps, float scale, int64_t n) {
  constexpr int kParts = 16 / Table::kWidth;
  typename Table::Lanes sums[kParts];
  for (auto& sum : sums) sum = Table::set(0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    for (int part = 0; part < kParts; ++part) {
      const int64_t at = i + part * Table::kWidth;
      if (at >= n) continue;
      const auto v = Table::load(x + at, n - at);
      sums[part] = Table::fma(v, v, sums[part]);
    }
  }
  float lane[16];
  for (int part = 0; part < kParts; ++part) {
    Table::store(lane + part * Table::kWidth, sums[part], Table::kWidth);
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  const auto inverse = Table::set(1.0f / __builtin_sqrtf(lane[0] + eps));
  const auto factor = Table::set(scale);
  for (int64_t i = 0; i < n; i += Table::kWidth) {
    Table::store(x + i, Table::mul(Table::mul(Table::load(x + i, n - i), inverse), factor), n - i);
  }
}

template <class Table>
inline void delta_multiply_silu(const float* gate, int64_t n, float* values) {
  for (int64_t i = 0; i < n; i += Table::kWidth) {
    const auto factor = delta_silu<Table>(Table::load(gate + i, n - i));
    Table::store(values + i, Table::mul(Table::load(values + i, n - i), factor), n - i);
  }
}

template <class Table>
inline void delta_multiply_sigmoid(const float* gate, int64_t n, float* values) {
  for (int64_t i = 0; i < n; i += Table::kWidth) {
    const auto factor = delta_sigmoid<Table>(Table::load(gate + i, n - i));
    Table::store(values + i, Table::mul(Table::load(values + i, n - i), factor), n - i);
  }
}

/// Adds eight chains: (j, j + 4), (j, j + 2), (j, j + 1).
template <class Table>
inline typename Table::Lanes add_chains(typename Table::Lanes* chain) {
  for (int width = 4; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) chain[j] = Table::add(chain[j], chain[j + width]);
  }
  return chain[0];
}

/// `columns` of the tile's, from its column `first` on. The decayed state is made twice and stored
/// once.
template <class Table, bool kHasOut>
inline void delta_columns(const DeltaSpan& span, int32_t first) {
  const int64_t left = span.columns - first;
  float* const state = span.state + first;
  for (int32_t token = 0; token < span.tokens; ++token) {
    const float* key = span.key + token * span.key_stride;
    const float* query = span.query + token * span.query_stride;
    const auto decay = Table::set(span.decay[token * span.gate_stride]);
    typename Table::Lanes chain[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) chain[j] = Table::set(0.0f);
    int32_t d = 0;
    for (; d + 8 <= span.key_dim; d += 8) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const auto s = Table::mul(Table::load(state + (d + j) * int64_t{kDeltaColumns}), decay);
        chain[j] = Table::fma(s, Table::set(key[d + j]), chain[j]);
      }
    }
    for (int j = 0; d < span.key_dim; ++d, ++j) {
      const auto s = Table::mul(Table::load(state + d * int64_t{kDeltaColumns}), decay);
      chain[j] = Table::fma(s, Table::set(key[d]), chain[j]);
    }
    const auto value = Table::load(span.value + token * span.value_stride + first, left);
    const auto beta = Table::set(span.beta[token * span.gate_stride]);
    const auto delta = Table::mul(beta, Table::sub(value, add_chains<Table>(chain)));
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) chain[j] = Table::set(0.0f);
    d = 0;
    for (; d + 8 <= span.key_dim; d += 8) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        float* const row = state + (d + j) * int64_t{kDeltaColumns};
        const auto s =
            Table::fma(Table::set(key[d + j]), delta, Table::mul(Table::load(row), decay));
        Table::store(row, s);
        if constexpr (kHasOut) chain[j] = Table::fma(s, Table::set(query[d + j]), chain[j]);
      }
    }
    for (int j = 0; d < span.key_dim; ++d, ++j) {
      float* const row = state + d * int64_t{kDeltaColumns};
      const auto s = Table::fma(Table::set(key[d]), delta, Table::mul(Table::load(row), decay));
      Table::store(row, s);
      if constexpr (kHasOut) chain[j] = Table::fma(s, Table::set(query[d]), chain[j]);
    }
    if constexpr (kHasOut) {
      Table::store(span.out + token * span.out_stride + first, add_chains<Table>(chain), left);
    }
  }
}

template <class Table>
inline void delta_run(const DeltaSpan& span) {
  for (int32_t first = 0; first < span.columns; first += Table::kWidth) {
    if (span.out != nullptr) {
      delta_columns<Table, true>(span, first);
    } else {
      delta_columns<Table, false>(span, first);
    }
  }
}

template <class Table>
constexpr DeltaKernels make_delta_kernels() {
  return {delta_convolve<Table>,         delta_gates<Table>,
          delta_l2_norm<Table>,          delta_multiply_silu<Table>,
          delta_multiply_sigmoid<Table>, delta_run<Table>,
          delta_gated_convolve<Table>};
}

}  // namespace
}  // namespace vitrine::kernels
