// SPDX-License-Identifier: Apache-2.0
// Norms, activation quantization, rotary embedding and sums of the portable table.
#include <cstring>

#include "../packed.h"
#include "../quantize_whole.h"
#include "../tanh_constants.h"
#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {

float mean_square(const float* x, int64_t n) {
  Lanes lanes;
  for (int64_t i = 0; i < n; ++i) lanes.fma_at(i, x[i], x[i]);
  return lanes.sum() / static_cast<float>(n);
}

float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float mean = mean_square(x, n);
  const float inverse = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] * inverse;
    out[i] = weight != nullptr ? scaled * weight[i] : scaled;
  }
  return mean;
}

void quantize_row(const float* x, int64_t n, int32_t group_size, int8_t* values, float* scales,
                  GroupSum* sums) {
  memset(values + n, 0, static_cast<size_t>(padded_cols(n) - n));
  for (int64_t g = 0; g < group_count(n, group_size); ++g) {
    const float* group = x + g * group_size;
    int8_t* q = values + g * group_size;
    const int64_t left = n - g * group_size;
    const int32_t count = left < group_size ? static_cast<int32_t>(left) : group_size;
    float max = 0.0f;
    bool has_nan = false;
    for (int32_t i = 0; i < count; ++i) {
      const float magnitude = std::fabs(group[i]);
      has_nan |= magnitude != magnitude;
      max = magnitude > max ? magnitude : max;
    }
    const float factor = 127.0f / max;
    sums[g] = {};
    // Factor 0: max is infinite. Factor infinite: max is 0, or so small that 127 / max overflows.
    if (has_nan || factor == 0.0f || factor == INFINITY) {
      memset(q, 0, count);
      scales[g] = has_nan ? NAN : (factor == 0.0f ? INFINITY : 0.0f);
      sums[g].weighted = 0.0f * scales[g];
      continue;
    }
    scales[g] = max / 127.0f;
    for (int32_t i = 0; i < count; ++i) {
      const float rounded = (group[i] * factor + kRoundMagic) - kRoundMagic;
      const float low = rounded < -127.0f ? -127.0f : rounded;
      q[i] = static_cast<int8_t>(low > 127.0f ? 127.0f : low);
      sums[g].whole = static_cast<int16_t>(sums[g].whole + q[i]);
      if (2 * i < group_size) sums[g].first_half = sums[g].whole;
    }
    sums[g].weighted = static_cast<float>(sums[g].whole) * scales[g];
  }
}

void quantize_whole_row(const float* x, int64_t n, int32_t group_size, float given, int8_t* values,
                        float* scales, GroupSum* sums) {
  quantize_whole(x, n, group_size, given, values, scales, sums);
}

void rope(float* x, const float* cos, const float* sin, int32_t n) {
  const int32_t half = n / 2;
  for (int32_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

namespace {

template <WeightFormat kFormat>
void write_floats(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                  const float* key, const float* value) {
  const int64_t base =
      (static_cast<int64_t>(block) * kv.kv_heads + kv_head) * kv.head_dim * kv.block_size;
  const int64_t key_base = base + offset;
  const int64_t value_base = base + static_cast<int64_t>(offset) * kv.head_dim;
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    const int64_t at = key_base + static_cast<int64_t>(d) * kv.block_size;
    store_element(kFormat, kv.keys, at, key[d]);
    store_element(kFormat, kv.values, value_base + d, value[d]);
  }
}

}  // namespace

void kv_write_f32(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                  const float* key, const float* value) {
  const int64_t base =
      (static_cast<int64_t>(block) * kv.kv_heads + kv_head) * kv.head_dim * kv.block_size;
  float* keys = static_cast<float*>(kv.keys) + base + offset;
  for (int32_t d = 0; d < kv.head_dim; ++d, keys += kv.block_size) *keys = key[d];
  memcpy(static_cast<float*>(kv.values) + base + static_cast<int64_t>(offset) * kv.head_dim, value,
         static_cast<size_t>(kv.head_dim) * sizeof(float));
}

void kv_write_f16(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                  const float* key, const float* value) {
  write_floats<WeightFormat::kF16>(kv, block, offset, kv_head, key, value);
}

void kv_write_bf16(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                   const float* key, const float* value) {
  write_floats<WeightFormat::kBF16>(kv, block, offset, kv_head, key, value);
}

void combine(const float* slots, int64_t slot_stride, const float* weights, int32_t k,
             const float* shared, float shared_weight, float multiplier, int64_t n,
             float* residual) {
  for (int64_t i = 0; i < n; ++i) {
    float sum = weights[0] * slots[i];
    for (int32_t s = 1; s < k; ++s) sum = sum + weights[s] * slots[s * slot_stride + i];
    if (shared != nullptr) sum = sum + shared_weight * shared[i];
    residual[i] = residual[i] + multiplier * sum;
  }
}

void add_scaled(const float* x, float multiplier, int64_t n, float* residual) {
  for (int64_t i = 0; i < n; ++i) residual[i] = residual[i] + multiplier * x[i];
}

void multiply(const float* factors, int64_t n, float* values) {
  for (int64_t i = 0; i < n; ++i) values[i] = values[i] * factors[i];
}

namespace {

void gate_by_gelu(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float t = g * g * kGeluCubic * g;
    out[i] = g / (1.0f + exp_float(-(kGeluFactor * (g + t)))) * up[i];
  }
}

float tanh_float(float x) {
  const float magnitude = std::fabs(x);
  if (magnitude < kTanhBorder) {
    const float z = x * x;
    float p = kTanhC4;
    p = std::fma(p, z, kTanhC3);
    p = std::fma(p, z, kTanhC2);
    p = std::fma(p, z, kTanhC1);
    p = std::fma(p, z, kTanhC0);
    return std::fma(p * z, x, x);
  }
  return std::copysign(1.0f - 2.0f / (exp_float(magnitude + magnitude) + 1.0f), x);
}

}  // namespace

void soft_cap(float cap, int64_t n, float* values) {
  for (int64_t i = 0; i < n; ++i) values[i] = cap * tanh_float(values[i] / cap);
}

void apply_gating(const Gating& gating, const float* gate, const float* up, int64_t n, float* out) {
  if (gating.kind == Gating::Kind::kGeluTanh) return gate_by_gelu(gate, up, n, out);
  const float limit = gating.limit;
  for (int64_t i = 0; i < n; ++i) {
    const float g = limit < gate[i] ? limit : gate[i];
    const float u = limit < up[i] ? limit : up[i] < -limit ? -limit : up[i];
    out[i] = (u + 1.0f) * (g / (1.0f + exp_float(-(gating.alpha * g))));
  }
}

float sigmoid(float x) { return 1.0f / (1.0f + exp_float(-x)); }

uint64_t read_lines(const void* data, int64_t lines) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint64_t sums[8] = {};
  for (int64_t line = 0; line < lines; ++line) {
    uint64_t words[8];
    memcpy(words, bytes + 64 * line, 64);
    for (int i = 0; i < 8; ++i) sums[i] ^= words[i];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum ^= part;
  return sum;
}

}  // namespace vitrine::kernels::portable
