// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <thread>

#include "federation/lbfgs.h"
#include "federation/weights.h"

namespace vitrine {

namespace {

// The mean negative log-likelihood of tokens and its gradient, summed over two ranges at once: each
// sum has a fixed order whatever the threads do.
class GateObjective {
 public:
  GateObjective(const FitData& data, double penalty) : data_(data), penalty_(penalty) {}

  // point: [specialists, hidden + 1], the bias last in each row.
  double operator()(const std::vector<double>& point, std::vector<double>& gradient) const {
    const size_t tokens = data_.num_tokens();
    std::vector<double> other(point.size());
    double other_value = 0;
    gradient.assign(point.size(), 0.0);
    double value = 0;
    {
      const std::jthread helper([&] { other_value = sum(point, tokens / 2, tokens, other); });
      value = sum(point, 0, tokens / 2, gradient);
    }
    value = (value + other_value) / static_cast<double>(tokens);
    const size_t width = static_cast<size_t>(data_.hidden_size) + 1;
    for (size_t i = 0; i < point.size(); ++i) {
      gradient[i] = (gradient[i] + other[i]) / static_cast<double>(tokens);
      if (i % width + 1 == width) continue;  // biases are free
      value += 0.5 * penalty_ * point[i] * point[i];
      gradient[i] += penalty_ * point[i];
    }
    return value;
  }

 private:
  double sum(const std::vector<double>& point, size_t begin, size_t end,
             std::vector<double>& gradient) const {
    const size_t count = data_.num_specialists;
    const auto hidden = static_cast<size_t>(data_.hidden_size);
    std::vector<float> rows(count * hidden), slopes(count * hidden);
    std::vector<double> weights(count), shares(count), biases(count);
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < hidden; ++j) {
        rows[i * hidden + j] = static_cast<float>(point[i * (hidden + 1) + j]);
      }
    }
    double total = 0;
    for (size_t token = begin; token < end; ++token) {
      const float* state = data_.hidden_states.data() + token * hidden;
      for (size_t i = 0; i < count; ++i) {
        weights[i] =
            point[i * (hidden + 1) + hidden] + dot(rows.data() + i * hidden, state, hidden);
      }
      federation::softmax(weights);
      total -= federation::joint_log(weights, &data_.logprobs[token * count], shares);
      for (size_t i = 0; i < count; ++i) {
        const double slope = weights[i] - shares[i];
        biases[i] += slope;
        const auto factor = static_cast<float>(slope);
        float* to = slopes.data() + i * hidden;
        for (size_t j = 0; j < hidden; ++j) to[j] += factor * state[j];
      }
      if ((token - begin) % kFlush == kFlush - 1 || token + 1 == end) flush(slopes, gradient);
    }
    for (size_t i = 0; i < count; ++i) gradient[i * (hidden + 1) + hidden] += biases[i];
    return total;
  }

  // float32 sums stay short.
  void flush(std::vector<float>& slopes, std::vector<double>& gradient) const {
    const auto hidden = static_cast<size_t>(data_.hidden_size);
    for (size_t i = 0; i < slopes.size(); ++i) {
      gradient[i / hidden * (hidden + 1) + i % hidden] += double{slopes[i]};
      slopes[i] = 0.0F;
    }
  }

  static double dot(const float* a, const float* b, size_t count) {
    constexpr size_t kLanes = 16;
    float sums[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
    }
    double sum = 0;
    for (const float lane : sums) sum += double{lane};
    for (; i < count; ++i) sum += double{a[i]} * double{b[i]};
    return sum;
  }

  static constexpr size_t kFlush = 64;
  const FitData& data_;
  double penalty_;
};

}  // namespace

CombinerSpec fit_gate(const FitData& data, const CombinerSpec& start, double penalty,
                      int max_iterations) {
  federation::check_data(data);
  federation::check_gate(start, data);
  if (!(penalty >= 0 && std::isfinite(penalty))) {
    throw Error(ErrorKind::kInvalidArgument,
                "a penalty of " + std::to_string(penalty) + " on a gate; expected 0 or more");
  }
  const size_t count = data.num_specialists;
  const auto hidden = static_cast<size_t>(data.hidden_size);
  std::vector<double> point;
  for (size_t i = 0; i < count; ++i) {
    point.insert(point.end(), start.gate.begin() + static_cast<int64_t>(i * hidden),
                 start.gate.begin() + static_cast<int64_t>((i + 1) * hidden));
    point.push_back(double{start.bias[i]});
  }
  constexpr double kGain = 1e-7;
  federation::minimize(GateObjective(data, penalty), point, max_iterations, kGain);
  CombinerSpec fitted = start;
  fitted.kind = CombinerSpec::Kind::kGate;
  fitted.hidden_size = data.hidden_size;
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < hidden; ++j) {
      fitted.gate[i * hidden + j] = static_cast<float>(point[i * (hidden + 1) + j]);
    }
    fitted.bias[i] = static_cast<float>(point[i * (hidden + 1) + hidden]);
  }
  return fitted;
}

}  // namespace vitrine
