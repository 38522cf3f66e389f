// SPDX-License-Identifier: Apache-2.0
#include "federation/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

namespace vitrine::federation {

namespace {

using Vector = std::vector<double>;

constexpr size_t kMemory = 10;    // pairs that stand for the curvature
constexpr double kEnough = 1e-4;  // of the decrease that the slope promises (Armijo)
constexpr int kMaxHalvings = 30;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
void add(Vector& to, double factor, const Vector& of) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * of[i];
}

struct Pair {
  Vector step, change;  // of the point, of the gradient
  double scale = 0;     // 1 / dot(step, change)
};

// The two-loop recursion: minus the approximate inverse of the curvature times the gradient.
Vector direction(const std::deque<Pair>& pairs, const Vector& gradient) {
  Vector d = gradient;
  std::vector<double> kept(pairs.size());
  for (size_t i = pairs.size(); i-- > 0;) {
    kept[i] = pairs[i].scale * dot(pairs[i].step, d);
    add(d, -kept[i], pairs[i].change);
  }
  if (!pairs.empty()) {
    const Pair& last = pairs.back();
    const double gamma = dot(last.step, last.change) / dot(last.change, last.change);
    for (double& value : d) value *= gamma;
  }
  for (size_t i = 0; i < pairs.size(); ++i) {
    add(d, kept[i] - pairs[i].scale * dot(pairs[i].change, d), pairs[i].step);
  }
  for (double& value : d) value = -value;
  return d;
}

}  // namespace

double minimize(const Objective& objective, std::vector<double>& point, int max_iterations,
                double tolerance) {
  Vector gradient(point.size()), next_gradient(point.size()), next;
  double value = objective(point, gradient);
  std::deque<Pair> pairs;
  for (int iteration = 0; iteration < max_iterations; ++iteration) {
    Vector d = direction(pairs, gradient);
    double slope = dot(d, gradient);
    if (!(slope < 0)) {  // the memory misleads: straight downhill
      pairs.clear();
      d = direction(pairs, gradient);
      slope = dot(d, gradient);
      if (!(slope < 0)) break;
    }
    double length = pairs.empty() ? std::min(1.0, 1.0 / std::sqrt(-slope)) : 1.0;
    double next_value = 0;
    bool is_better = false;
    for (int i = 0; i < kMaxHalvings && !is_better; ++i, length *= is_better ? 1.0 : 0.5) {
      next = point;
      add(next, length, d);
      next_value = objective(next, next_gradient);
      is_better = next_value <= value + kEnough * length * slope;
    }
    if (!is_better) break;
    Pair pair;
    pair.step = next;
    add(pair.step, -1.0, point);
    pair.change = next_gradient;
    add(pair.change, -1.0, gradient);
    const double curvature = dot(pair.step, pair.change);
    if (curvature > 1e-14) {
      pair.scale = 1.0 / curvature;
      pairs.push_back(std::move(pair));
      if (pairs.size() > kMemory) pairs.pop_front();
    }
    const double gain = value - next_value;
    point.swap(next);
    gradient.swap(next_gradient);
    value = next_value;
    if (gain < tolerance) break;
  }
  return value;
}

}  // namespace vitrine::federation
