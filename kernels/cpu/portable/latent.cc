// SPDX-License-Identifier: Apache-2.0
// Latent attention of the portable table, and the writing of its keys for all tables.
#include "../latent.h"
#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {
namespace {

struct Table {
  struct Lanes {
    float lane[kLatentLanes];
  };
  struct Integers {
    int32_t lane[kLatentLanes];
  };
  template <class Vector, class Make>
  static Vector make(const Make& make_lane) {
    Vector v;
    for (int i = 0; i < kLatentLanes; ++i) v.lane[i] = make_lane(i);
    return v;
  }
  static Lanes load(const float* x) {
    return make<Lanes>([&](int i) { return x[i]; });
  }
  static void store(float* x, const Lanes& v) { __builtin_memcpy(x, v.lane, sizeof(v.lane)); }
  static Lanes set(float x) {
    return make<Lanes>([&](int) { return x; });
  }
  static Lanes add(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Lanes sub(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Lanes mul(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Lanes div(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return make<Lanes>([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  /// b where a lane of either is NaN.
  static Lanes max(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Lanes exp(const Lanes& x) {
    return make<Lanes>([&](int i) { return exp_float(x.lane[i]); });
  }
  static Integers load_integers(const int32_t* x) {
    return make<Integers>([&](int i) { return x[i]; });
  }
  static void store_integers(int32_t* x, const Integers& v) {
    __builtin_memcpy(x, v.lane, sizeof(v.lane));
  }
  static Integers set_integers(int32_t x) {
    return make<Integers>([&](int) { return x; });
  }
  static Integers bit_and(const Integers& a, const Integers& b) {
    return make<Integers>([&](int i) { return a.lane[i] & b.lane[i]; });
  }
  /// 0 for what is no number that fits 16 bits.
  static Integers round(const Lanes& x) {
    return make<Integers>([&](int i) {
      const bool fits = std::fabs(x.lane[i]) < 0x1p15f;
      return fits ? static_cast<int32_t>((x.lane[i] + kRoundMagic) - kRoundMagic) : 0;
    });
  }
  static Lanes widen(const Integers& x) {
    return make<Lanes>([&](int i) { return static_cast<float>(x.lane[i]); });
  }
  static Integers dot(const Integers& sum, const Integers& a, const Integers& b) {
    const auto low = [](int32_t word) { return static_cast<int16_t>(word); };
    const auto high = [](int32_t word) { return word >> 16; };
    return make<Integers>([&](int i) {
      return sum.lane[i] + low(a.lane[i]) * low(b.lane[i]) + high(a.lane[i]) * high(b.lane[i]);
    });
  }
  static Integers pair(const Integers& first, const Integers& second) {
    return make<Integers>([&](int i) { return first.lane[i] | second.lane[i] << 16; });
  }
};

template <WeightFormat kFormat>
void write_floats(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  uint8_t* place = latent_place(kv, block, offset, float_kv_bytes(kFormat, kv.head_dim));
  for (int32_t d = 0; d < kv.head_dim; ++d) store_element(kFormat, place, d, key[d]);
}

}  // namespace

void write_latent_f32(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  write_floats<WeightFormat::kF32>(kv, block, offset, key);
}
void write_latent_f16(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  write_floats<WeightFormat::kF16>(kv, block, offset, key);
}
void write_latent_bf16(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  write_floats<WeightFormat::kBF16>(kv, block, offset, key);
}
void write_latent_i16(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  uint8_t* place = latent_place(kv, block, offset, int16_kv_bytes(kv.head_dim));
  int16_t numbers[kMaxLatentKey + 1];
  const float scale = quantize_latent(key, kv.head_dim, numbers);
  const size_t bytes = static_cast<size_t>(element_pairs(kv.head_dim)) * sizeof(int32_t);
  __builtin_memcpy(place, numbers, bytes);
  __builtin_memcpy(place + bytes, &scale, sizeof(scale));
}

void attend_latent_f32(const KvView& kv, const AttentionSpan& span) {
  attend_latent_floats<Table, WeightFormat::kF32>(kv, span);
}
void attend_latent_f16(const KvView& kv, const AttentionSpan& span) {
  attend_latent_floats<Table, WeightFormat::kF16>(kv, span);
}
void attend_latent_bf16(const KvView& kv, const AttentionSpan& span) {
  attend_latent_floats<Table, WeightFormat::kBF16>(kv, span);
}
void attend_latent_i16(const KvView& kv, const AttentionSpan& span) {
  attend_latent_integers<Table>(kv, span);
}

}  // namespace vitrine::kernels::portable
