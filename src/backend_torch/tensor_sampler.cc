// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/tensor_sampler.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend_torch/upload.h"
#include "engine/run/executor.h"

namespace vitrine::backend_torch {
namespace {

using Kind = DeviceSamplerStep::Kind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One row on its way to a choice. In float32 throughout: MPS has nothing wider.
class Choice {
 public:
  explicit Choice(const at::Tensor& logits)
      : given_(logits),
        logits_(logits),
        ids_(at::arange(logits.size(0), logits.options().dtype(at::kLong))) {}

  void take(const DeviceSamplerStep& step) {
    switch (step.kind) {
      case Kind::kAdd: add(step); break;
      case Kind::kPenalise: penalise(step); break;
      case Kind::kMask: mask(step); break;
      case Kind::kDivide: divide(at::full_like(largest(), step.a)); break;
      case Kind::kDynamicTemperature: divide_by_entropy(step.a, step.b, step.c); break;
      case Kind::kTopNSigma: keep_near(step.a); break;
      case Kind::kTopK: keep_first(step.a); break;
      case Kind::kTypicalP: keep_typical(step.a); break;
      case Kind::kTopP: keep_mass(order(), step.a); break;
      case Kind::kMinP: keep((logits_ - largest()).ge(step.a)); break;
      case Kind::kXtc: drop_top(step.a); break;
      case Kind::kDraw: draw(step.a); break;
      case Kind::kGreedy:
        id_ = order().narrow(0, 0, 1);
        probability_ = at::ones({1}, logits_.options());
        candidates_ = probability_;
    }
  }

  TensorChoice finish() const {
    // A comparison with NaN is false, so this sees NaN and +infinity.
    const at::Tensor is_broken = given_.lt(kInfinity).all().logical_not();
    const at::Tensor is_empty = logits_.gt(-kInfinity).any().logical_not();
    at::Tensor id = at::where(is_empty, engine::kNothingLeft, id_);
    id = at::where(is_broken, engine::kBrokenLogits, id);
    const at::Tensor none = at::zeros({1}, logits_.options());
    return {id, at::cat({candidates_, probability_, removed_.defined() ? removed_ : none,
                         first_ruled_out_.defined() ? first_ruled_out_ : none})};
  }

 private:
  at::Tensor upload_ids(const DeviceSamplerStep& step) const {
    const std::vector<int64_t> ids(step.ids.begin(), step.ids.end());
    return upload(ids, at::kLong, logits_.device());
  }
  at::Tensor upload_values(const DeviceSamplerStep& step) const {
    return upload(step.values, at::kFloat, logits_.device());
  }
  at::Tensor largest() const { return logits_.max().reshape({1}); }
  /// e^(logit - largest): probabilities but for their sum.
  at::Tensor weights() const { return (logits_ - largest()).exp(); }
  /// Ids from the best to the worst, ties by lower id.
  at::Tensor order() const {
    return std::get<1>(at::sort(logits_, /*stable=*/true, 0, /*descending=*/true));
  }
  void keep(const at::Tensor& kept) {
    logits_ = logits_.masked_fill(kept.logical_not(), -kInfinity);
  }

  void add(const DeviceSamplerStep& step) {
    if (step.ids.empty()) return;
    logits_ = logits_.index_add(0, upload_ids(step), upload_values(step));
  }
  void penalise(const DeviceSamplerStep& step) {
    if (step.ids.empty()) return;
    const at::Tensor ids = upload_ids(step);
    const at::Tensor old = logits_.index_select(0, ids);
    const auto factor = static_cast<float>(step.a);
    const at::Tensor changed = at::where(old.lt(0), old * factor, old / factor);
    logits_ = logits_.index_copy(0, ids, changed - upload_values(step));
  }
  void mask(const DeviceSamplerStep& step) {
    const std::vector<int64_t> words(step.mask.begin(), step.mask.end());
    const at::Tensor bits = upload(words, at::kLong, logits_.device()).unsqueeze(1);
    at::Tensor allowed =
        bits.bitwise_right_shift(at::arange(32, bits.options())).bitwise_and(1).reshape({-1});
    const int64_t missing = ids_.size(0) - allowed.size(0);
    allowed = missing > 0 ? at::cat({allowed, at::zeros({missing}, allowed.options())})
                          : allowed.narrow(0, 0, ids_.size(0));
    allowed = allowed.ne(0);
    const at::Tensor before = given_.softmax(0);
    removed_ = before.masked_fill(allowed, 0).sum().reshape({1});
    first_ruled_out_ =
        allowed.index_select(0, given_.argmax(0).reshape({1})).logical_not().to(at::kFloat);
    keep(allowed);
  }
  /// Shifts by the largest logit where the quotient would leave float's range.
  void divide(const at::Tensor& temperature) {
    const at::Tensor best = largest();
    const at::Tensor shift = at::where((best / temperature).isfinite(), at::zeros_like(best), best);
    logits_ = (logits_ - shift) / temperature;
  }
  void divide_by_entropy(double low, double high, double exponent) {
    const at::Tensor left = logits_.gt(-kInfinity);
    const at::Tensor count = left.sum().reshape({1});
    const at::Tensor w = weights(), total = w.sum().reshape({1});
    const at::Tensor distance = (logits_ - largest()).masked_fill(left.logical_not(), 0);
    const at::Tensor entropy = total.log() - (w * distance).sum().reshape({1}) / total;
    const at::Tensor share = (entropy / count.log()).clamp(0, 1);
    const at::Tensor temperature = share.pow(exponent) * (high - low) + low;
    const at::Tensor old = logits_, best = largest();
    divide(temperature);
    logits_ = at::where(temperature.gt(0), logits_, old.masked_fill(old.lt(best), -kInfinity));
    logits_ = at::where(count.lt(2), old, logits_);
  }
  void keep_near(double deviations) {
    const at::Tensor left = logits_.gt(-kInfinity);
    const at::Tensor count = left.sum();
    const at::Tensor distance = (logits_ - largest());
    const at::Tensor known = distance.masked_fill(left.logical_not(), 0);
    const at::Tensor mean = known.sum() / count;
    const at::Tensor squares = (known - mean).square().masked_fill(left.logical_not(), 0).sum();
    keep(distance.ge((squares / count).sqrt() * -deviations));
  }
  void keep_first(double count) {
    const auto k = static_cast<int64_t>(count);
    if (k >= ids_.size(0)) return;
    logits_ = logits_.index_fill(0, order().narrow(0, k, ids_.size(0) - k), -kInfinity);
  }
  /// Keeps the fewest ids, in this order, whose weights reach `share` of the sum.
  void keep_mass(const at::Tensor& order, double share) {
    const at::Tensor w = weights().index_select(0, order);
    const at::Tensor sums = w.cumsum(0);
    // What stands before an id has not reached it yet; before the first one stands nothing.
    const at::Tensor before =
        at::cat({at::zeros_like(sums.narrow(0, 0, 1)), sums.narrow(0, 0, sums.size(0) - 1)});
    at::Tensor kept = before.lt(sums.narrow(0, sums.size(0) - 1, 1) * share);
    kept = kept.logical_or(ids_.eq(0));
    keep(at::zeros_like(kept).index_copy(0, order, kept));
  }
  void keep_typical(double share) {
    const at::Tensor w = weights();
    const at::Tensor distance = (logits_ - largest());
    const at::Tensor mean = (w / w.sum() * distance.masked_fill(w.eq(0), 0)).sum();
    const at::Tensor best_first = order();
    const at::Tensor apart = (mean - distance).abs().index_select(0, best_first);
    const at::Tensor nearest = std::get<1>(at::sort(apart, /*stable=*/true, 0, false));
    keep_mass(best_first.index_select(0, nearest), share);
  }
  void drop_top(double threshold) {
    const at::Tensor w = weights();
    const at::Tensor reaches = w.gt(0).logical_and(w.ge(w.sum() * threshold));
    const at::Tensor lowest = logits_.masked_fill(reaches.logical_not(), kInfinity).min();
    const at::Tensor last =
        ids_.masked_fill(reaches.logical_and(logits_.eq(lowest)).logical_not(), -1).max();
    keep(reaches.logical_not().logical_or(ids_.eq(last)).logical_or(reaches.sum().lt(2)));
  }
  void draw(double uniform) {
    const at::Tensor w = weights(), sums = w.cumsum(0);
    const at::Tensor total = sums.narrow(0, sums.size(0) - 1, 1);
    const at::Tensor first = at::searchsorted(sums, total * uniform, false, /*right=*/true);
    // The product may round up to the total: then the last of nonzero probability.
    const at::Tensor last = ids_.masked_fill(w.eq(0), 0).max().reshape({1});
    id_ = at::minimum(first, last);
    probability_ = w.index_select(0, id_) / total;
    const at::Tensor left = logits_.gt(-kInfinity).sum().reshape({1}).to(at::kFloat);
    candidates_ = at::where(probability_.eq(1), probability_, left);  // certain: a choice of one
  }

  at::Tensor given_, logits_;
  at::Tensor ids_;
  at::Tensor id_, probability_, candidates_, removed_, first_ruled_out_;
};

}  // namespace

TensorChoice choose_with_tensors(const at::Tensor& logits,
                                 std::span<const DeviceSamplerStep> steps) {
  Choice choice(logits);
  for (const DeviceSamplerStep& step : steps) choice.take(step);
  return choice.finish();
}

}  // namespace vitrine::backend_torch
