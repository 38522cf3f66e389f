// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet of the portable table.
#include "../delta.h"
#include "math.h"

namespace vitrine::kernels::portable {
namespace {

struct Table {
  static constexpr int kWidth = 16;
  struct Lanes {
    float lane[kWidth];
  };
  template <class Make>
  static Lanes make(const Make& make_lane) {
    Lanes v;
    for (int i = 0; i < kWidth; ++i) v.lane[i] = make_lane(i);
    return v;
  }
  static Lanes load(const float* x) {
    return make([&](int i) { return x[i]; });
  }
  static Lanes load(const float* x, int64_t n) {
    return make([&](int i) { return i < n ? x[i] : 0.0f; });
  }
  static void store(float* x, const Lanes& v) { __builtin_memcpy(x, v.lane, sizeof(v.lane)); }
  static void store(float* x, const Lanes& v, int64_t n) {
    for (int i = 0; i < kWidth && i < n; ++i) x[i] = v.lane[i];
  }
  static Lanes set(float x) {
    return make([&](int) { return x; });
  }
  static Lanes add(const Lanes& a, const Lanes& b) {
    return make([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Lanes sub(const Lanes& a, const Lanes& b) {
    return make([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Lanes mul(const Lanes& a, const Lanes& b) {
    return make([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Lanes div(const Lanes& a, const Lanes& b) {
    return make([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return make([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  /// b where a lane of either is NaN.
  static Lanes max(const Lanes& a, const Lanes& b) {
    return make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Lanes exp(const Lanes& x) {
    return make([&](int i) { return exp_float(x.lane[i]); });
  }
};

}  // namespace

constinit const DeltaKernels kDeltaKernels = make_delta_kernels<Table>();

}  // namespace vitrine::kernels::portable
