// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet: convolution, gates, norms and the walk through a state.
#include "kernel_test_util.h"
#include "kernels/cpu/delta_kernels.h"

namespace vitrine::kernels::testing {
namespace {

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(DeltaGates, AgainstDoubleAndTheSameInEveryTable) {
  Random random(1);
  for (const int64_t n : {1, 3, 8, 15, 16, 17, 40}) {
    std::vector<float> a = random.normals(n, 8.0f), b = random.normals(n, 5.0f);
    const std::vector<float> bias = random.normals(n);
    std::vector<float> rate = random.normals(n);
    for (float& value : rate) value = -std::fabs(value);
    if (n > 8) a[8] = 60.0f;
    std::vector<float> first_decay, first_beta;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> decay(n), beta(n);
      delta_kernels(*table).gates(a.data(), b.data(), bias.data(), rate.data(), n, decay.data(),
                                  beta.data());
      for (int64_t i = 0; i < n; ++i) {
        const double power = rate[i] * softplus(double{a[i] + bias[i]});
        EXPECT_NEAR(decay[i], std::exp(power), 4e-7 * (1 + std::fabs(power))) << table->isa;
        EXPECT_NEAR(beta[i], sigmoid(b[i]), 3e-7) << table->isa;
      }
      if (first_decay.empty()) first_decay = decay, first_beta = beta;
      EXPECT_TRUE(same_bits(decay, first_decay)) << table->isa;
      EXPECT_TRUE(same_bits(beta, first_beta)) << table->isa;
    }
  }
}

TEST(DeltaConvolve, AgainstDoubleAndTheSameInEveryTable) {
  Random random(2);
  for (const int64_t n : {1, 15, 16, 31, 72}) {
    for (const int32_t taps : {1, 3, 4}) {
      std::vector<std::vector<float>> rows;
      std::vector<const float*> inputs;
      for (int32_t j = 0; j < taps; ++j) rows.push_back(random.normals(n));
      for (const auto& row : rows) inputs.push_back(row.data());
      const std::vector<float> weights = random.normals(taps * (n + 5));
      std::vector<float> first;
      for (const CpuKernels* table : available_tables()) {
        std::vector<float> out(n + 1, 7.0f);
        delta_kernels(*table).convolve(inputs.data(), weights.data(), n + 5, taps, n, out.data());
        for (int64_t i = 0; i < n; ++i) {
          double sum = 0;
          for (int32_t j = 0; j < taps; ++j) sum += double{weights[j * (n + 5) + i]} * rows[j][i];
          EXPECT_NEAR(out[i], sum * sigmoid(sum), 2e-6) << table->isa;
        }
        EXPECT_EQ(out[n], 7.0f) << "written behind the end by " << table->isa;
        if (first.empty()) first = out;
        EXPECT_TRUE(same_bits(out, first)) << table->isa;
      }
    }
  }
}

TEST(GatedConvolve, AgainstDoubleAndTheSameInEveryTable) {
  Random random(5);
  for (const int64_t n : {1, 15, 16, 31, 72}) {
    for (const int32_t taps : {2, 3, 4}) {
      std::vector<std::vector<float>> rows;
      std::vector<const float*> inputs;
      for (int32_t j = 0; j < taps; ++j) rows.push_back(random.normals(n));
      for (const auto& row : rows) inputs.push_back(row.data());
      const std::vector<float> weights = random.normals(taps * (n + 5));
      const std::vector<float> bias = random.normals(n), gate = random.normals(n);
      for (const float* added : {static_cast<const float*>(nullptr), bias.data()}) {
        std::vector<float> first;
        for (const CpuKernels* table : available_tables()) {
          std::vector<float> out(n + 1, 7.0f);
          delta_kernels(*table).gated_convolve(inputs.data(), weights.data(), n + 5, taps, added,
                                               gate.data(), n, out.data());
          for (int64_t i = 0; i < n; ++i) {
            double sum = added == nullptr ? 0 : bias[i];
            for (int32_t j = 0; j < taps; ++j) sum += double{weights[j * (n + 5) + i]} * rows[j][i];
            EXPECT_NEAR(out[i], sum * gate[i], 4e-6) << table->isa;
          }
          EXPECT_EQ(out[n], 7.0f) << "written behind the end by " << table->isa;
          if (first.empty()) first = out;
          EXPECT_TRUE(same_bits(out, first)) << table->isa;
        }
      }
    }
  }
}

// To the bit: taps ascending, each by FMA, from +0; then the bias; then the gate.
TEST(GatedConvolve, RoundsAsTheDocumentSays) {
  Random random(6);
  constexpr int64_t kCount = 40;
  constexpr int32_t kTaps = 3;
  std::vector<std::vector<float>> rows;
  std::vector<const float*> inputs;
  for (int32_t j = 0; j < kTaps; ++j) rows.push_back(random.normals(kCount));
  for (const auto& row : rows) inputs.push_back(row.data());
  const std::vector<float> weights = random.normals(kTaps * kCount);
  const std::vector<float> bias = random.normals(kCount), gate = random.normals(kCount);
  std::vector<float> expected;
  for (int64_t i = 0; i < kCount; ++i) {
    float sum = 0;
    for (int32_t j = 0; j < kTaps; ++j) sum = std::fma(weights[j * kCount + i], rows[j][i], sum);
    sum += bias[i];
    expected.push_back(gate[i] * sum);
  }
  for (const CpuKernels* table : available_tables()) {
    std::vector<float> out(kCount);
    delta_kernels(*table).gated_convolve(inputs.data(), weights.data(), kCount, kTaps, bias.data(),
                                         gate.data(), kCount, out.data());
    EXPECT_TRUE(same_bits(out, expected)) << table->isa;
  }
}

TEST(DeltaNorms, AgainstDoubleAndTheSameInEveryTable) {
  Random random(3);
  for (const int64_t n : {1, 7, 16, 24, 33, 128}) {
    const std::vector<float> x = random.normals(n, 2.0f), gate = random.normals(n, 4.0f);
    double squares = 0;
    for (const float value : x) squares += double{value} * value;
    std::vector<float> first;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> normed = x, with_silu = x, with_sigmoid = x;
      delta_kernels(*table).l2_norm(normed.data(), 1e-6f, 0.25f, n);
      delta_kernels(*table).multiply_silu(gate.data(), n, with_silu.data());
      delta_kernels(*table).multiply_sigmoid(gate.data(), n, with_sigmoid.data());
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(normed[i], 0.25 * x[i] / std::sqrt(squares + 1e-6), 2e-6) << table->isa;
        EXPECT_NEAR(with_silu[i], x[i] * gate[i] * sigmoid(gate[i]), 2e-5) << table->isa;
        EXPECT_NEAR(with_sigmoid[i], x[i] * sigmoid(gate[i]), 2e-6) << table->isa;
      }
      normed.insert(normed.end(), with_silu.begin(), with_silu.end());
      normed.insert(normed.end(), with_sigmoid.begin(), with_sigmoid.end());
      if (first.empty()) first = normed;
      EXPECT_TRUE(same_bits(normed, first)) << table->isa;
    }
  }
}

struct Walk {
  int32_t key_dim, columns, tokens;
  std::vector<float> queries, keys, values, decay, beta;

  Walk(Random& random, int32_t key_dim, int32_t columns, int32_t tokens)
      : key_dim(key_dim), columns(columns), tokens(tokens) {
    queries = random.normals(tokens * key_dim, 0.3f);
    keys = random.normals(tokens * key_dim, 0.3f);
    values = random.normals(tokens * columns);
    for (const float x : random.normals(tokens))
      decay.push_back(static_cast<float>(sigmoid(x + 2)));
    for (const float x : random.normals(tokens)) beta.push_back(static_cast<float>(sigmoid(x)));
  }

  /// Tokens [begin, end) into out [tokens, columns].
  void run(const CpuKernels& table, int32_t begin, int32_t end, std::vector<float>& state,
           std::vector<float>& out) const {
    DeltaSpan span;
    span.state = state.data();
    span.key_dim = key_dim;
    span.columns = columns;
    span.tokens = end - begin;
    span.query = &queries[static_cast<size_t>(begin * key_dim)];
    span.key = &keys[static_cast<size_t>(begin * key_dim)];
    span.value = &values[static_cast<size_t>(begin * columns)];
    span.decay = &decay[static_cast<size_t>(begin)];
    span.beta = &beta[static_cast<size_t>(begin)];
    span.out = &out[static_cast<size_t>(begin * columns)];
    span.query_stride = span.key_stride = key_dim;
    span.value_stride = span.out_stride = columns;
    span.gate_stride = 1;
    delta_kernels(table).run(span);
  }
};

TEST(DeltaWalk, AgainstDoubleInRunsAndTheSameInEveryTable) {
  Random random(4);
  for (const int32_t key_dim : {1, 8, 13, 16, 128}) {
    for (const int32_t columns : {1, 7, 8, 16}) {
      const Walk walk(random, key_dim, columns, 21);
      std::vector<double> expected, state(static_cast<size_t>(key_dim * columns));
      for (int32_t t = 0; t < walk.tokens; ++t) {
        for (int32_t c = 0; c < columns; ++c) {
          double u = 0, o = 0;
          for (int32_t d = 0; d < key_dim; ++d) {
            u += (state[d * columns + c] *= walk.decay[t]) * walk.keys[t * key_dim + d];
          }
          const double delta = walk.beta[t] * (walk.values[t * columns + c] - u);
          for (int32_t d = 0; d < key_dim; ++d) {
            o += (state[d * columns + c] += walk.keys[t * key_dim + d] * delta) *
                 walk.queries[t * key_dim + d];
          }
          expected.push_back(o);
        }
      }
      std::vector<float> first;
      for (const CpuKernels* table : available_tables()) {
        for (const int32_t step : {21, 1, 5}) {
          std::vector<float> kept(static_cast<size_t>(key_dim * kDeltaColumns));
          std::vector<float> out(static_cast<size_t>(walk.tokens * columns));
          for (int32_t t = 0; t < walk.tokens; t += step) {
            walk.run(*table, t, std::min(walk.tokens, t + step), kept, out);
          }
          for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 3e-5);
          if (first.empty()) first = out;
          EXPECT_TRUE(same_bits(out, first)) << table->isa << " in runs of " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
