// SPDX-License-Identifier: Apache-2.0
// Mixture, gate and product of experts (Jacobs et al. 1991; Hinton 2002), over whole vocabularies.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "federation/account.h"
#include "federation/block_combiner.h"
#include "federation/row_math.h"
#include "federation/spec_limits.h"
#include "vitrine/federation.h"

namespace vitrine {

using federation::exp_float;
using federation::log_float;

namespace {

constexpr size_t kBlock = 256;  // tokens worked on at once

// In place of log(0): a specialist without weight adds nothing and no NaN.
constexpr float kNoWeight = -1e30F;
// A mixture's probability from which on the specialists' exponentials tell it: below it their floor
// of exp(-87) would show, and numbers near 1e-38 have no logarithm here.
constexpr float kLeastMixed = 1e-30F;

using Block = std::array<float, kBlock>;

// sum[t] += exp(x[t]); below -87 as for -87. The clamp stands in a loop of its own: in one with the
// exponential the compiler makes it a branch, and no vectors.
VITRINE_ROW_LOOP void add_exp(Block& x, Block& sum) {
  for (float& value : x) value = std::max(value, -87.0F);
  for (size_t t = 0; t < kBlock; ++t) sum[t] += exp_float(x[t]);
}

VITRINE_ROW_LOOP void add_log(const Block& sum, Block& to) {
  for (size_t t = 0; t < kBlock; ++t) to[t] += log_float(sum[t]);
}

// to[t] = max(to[t], logits[t] + offset)
VITRINE_ROW_LOOP void raise(const float* logits, float offset, size_t count, Block& to) {
  for (size_t t = 0; t < count; ++t) to[t] = std::max(to[t], logits[t] + offset);
}

// to[t] = exp(max(logits[t] - most, -87)); their sum, by eight lanes of float64.
VITRINE_ROW_LOOP double exponentials_of(const float* logits, size_t count, float most, float* to) {
  constexpr size_t kLanes = 8;
  for (size_t t = 0; t < count; ++t) to[t] = std::max(logits[t] - most, -87.0F);
  for (size_t t = 0; t < count; ++t) to[t] = exp_float(to[t]);
  std::array<double, kLanes> sums{};
  size_t first = 0;
  for (; first + kLanes <= count; first += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += double{to[first + lane]};
  }
  for (size_t lane = 0; first + lane < count; ++lane) sums[lane] += double{to[first + lane]};
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

// to[t] = factor * x[t], or that added to it.
VITRINE_ROW_LOOP void weigh(const float* x, float factor, size_t count, bool first, float* to) {
  if (first) {
    for (size_t t = 0; t < count; ++t) to[t] = factor * x[t];
  } else {
    for (size_t t = 0; t < count; ++t) to[t] += factor * x[t];
  }
}

// to[t] = weight * (logits[t] + offset), or that added to it.
VITRINE_ROW_LOOP void add_weighted(const float* logits, float offset, float weight, bool first,
                                   std::span<float> to) {
  if (first) {
    for (size_t t = 0; t < to.size(); ++t) to[t] = weight * (logits[t] + offset);
  } else {
    for (size_t t = 0; t < to.size(); ++t) to[t] += weight * (logits[t] + offset);
  }
}

VITRINE_ROW_LOOP void take_log(size_t count, float* x) {
  for (size_t t = 0; t < count; ++t) x[t] = log_float(x[t]);
}

VITRINE_ROW_LOOP bool all_reach(const float* x, size_t count, float least) {
  int32_t below = 0;
  for (size_t t = 0; t < count; ++t) below |= x[t] >= least ? 0 : 1;
  return below == 0;
}

// The largest, by lanes: the maximum has no order. A choice between two values, not std::max, whose
// references keep the compiler from making vectors of it.
VITRINE_ROW_LOOP float largest(std::span<const float> values) {
  constexpr size_t kLanes = 64;
  std::array<float, kLanes> most;
  most.fill(-std::numeric_limits<float>::infinity());
  const float* row = values.data();
  const auto take = [&most](const float* from, size_t count) {
    for (size_t t = 0; t < count; ++t) most[t] = from[t] > most[t] ? from[t] : most[t];
  };
  size_t first = 0;
  for (; first + kLanes <= values.size(); first += kLanes) take(row + first, kLanes);
  take(row + first, values.size() - first);
  return *std::ranges::max_element(most);
}

// Tokens [first, first + count) of a row whose log-probabilities are a weighted mixture.
void mix_block(const CombinerInput& input, std::span<const float> offsets, size_t first,
               size_t count, float* joint) {
  Block most, sum, x;
  most.fill(kNoWeight);  // not infinite: a token that all specialists rule out is no NaN
  sum.fill(0.0F);
  x.fill(0.0F);
  for (size_t i = 0; i < offsets.size(); ++i) {
    raise(input.specialists[i].logits.data() + first, offsets[i], count, most);
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    const float* logits = input.specialists[i].logits.data() + first;
    for (size_t t = 0; t < count; ++t) x[t] = (logits[t] + offsets[i]) - most[t];
    add_exp(x, sum);
  }
  add_log(sum, most);
  std::copy_n(most.begin(), count, joint);
}

void take_logprobs(const CombinerInput& input, int32_t token, std::span<SpecialistShare> shares) {
  for (size_t i = 0; i < shares.size(); ++i) {
    const SpecialistRow& row = input.specialists[i];
    shares[i].logprob = double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp;
  }
}

class Mixture : public BlockCombiner {
 public:
  explicit Mixture(std::vector<double> weights)
      : weights_(std::move(weights)), offsets_(weights_.size()) {}

  std::string_view name() const override { return "mixture"; }

  bool uses_exponentials() const override { return true; }

  void begin(const CombinerInput& input) override {
    for (size_t i = 0; i < weights_.size(); ++i) {
      offsets_[i] =
          weights_[i] > 0
              ? static_cast<float>(std::log(weights_[i]) - input.specialists[i].log_sum_exp)
              : kNoWeight;
    }
  }

  // log of the sum of weight * exp(block_max - log_sum_exp) * the exponentials that are there.
  void combine_block(const CombinerInput& input, std::span<const RowExponentials> exponentials,
                     size_t first, std::span<float> joint) const override {
    for (size_t i = 0; i < exponentials.size(); ++i) {
      const RowExponentials& of = exponentials[i];
      const double scale =
          std::exp(double{of.block_max[first / kJointBlock]} - input.specialists[i].log_sum_exp);
      weigh(of.values.data() + first, static_cast<float>(weights_[i] * scale), joint.size(), i == 0,
            joint.data());
    }
    if (!exponentials.empty() && all_reach(joint.data(), joint.size(), kLeastMixed)) {
      return take_log(joint.size(), joint.data());
    }
    for (size_t at = 0; at < joint.size(); at += kBlock) {
      mix_block(input, offsets_, first + at, std::min(kBlock, joint.size() - at),
                joint.data() + at);
    }
  }

  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    take_logprobs(input, token, shares);
    return federation::account_of_mixture(weights_, shares);
  }

 protected:
  std::vector<double> weights_;

 private:
  std::vector<float> offsets_;
};

class Gate final : public Mixture {
 public:
  Gate(const CombinerSpec& spec, size_t num_specialists)
      : Mixture(std::vector<double>(num_specialists)), spec_(spec) {}

  std::string_view name() const override { return "gate"; }
  bool needs_hidden_state() const override { return true; }

  void begin(const CombinerInput& input) override {
    const auto hidden = static_cast<size_t>(spec_.hidden_size);
    if (input.hidden_state.size() != hidden) {
      throw Error(ErrorKind::kInvalidArgument,
                  "the gate reads " + std::to_string(hidden) +
                      " numbers of the base's hidden state and was given " +
                      std::to_string(input.hidden_state.size()) +
                      "; expected the base that it was fitted for");
    }
    double most = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < weights_.size(); ++i) {
      double sum = double{spec_.bias[i]};
      const float* row = spec_.gate.data() + i * hidden;
      for (size_t j = 0; j < hidden; ++j) sum += double{row[j]} * double{input.hidden_state[j]};
      weights_[i] = sum;
      most = std::max(most, sum);
    }
    double total = 0;
    for (double& weight : weights_) total += weight = std::exp(weight - most);
    for (double& weight : weights_) weight /= total;
    Mixture::begin(input);
  }

 private:
  CombinerSpec spec_;
};

class Product final : public BlockCombiner {
 public:
  explicit Product(std::vector<double> weights)
      : weights_(std::move(weights)), offsets_(weights_.size()) {}

  std::string_view name() const override { return "product"; }
  ShareKind shares() const override { return ShareKind::kTerm; }

  bool is_normalised() const override { return false; }
  void set_log_normaliser(double log_normaliser) override { log_normaliser_ = log_normaliser; }

  void begin(const CombinerInput& input) override {
    for (size_t i = 0; i < weights_.size(); ++i) {
      offsets_[i] = static_cast<float>(-input.specialists[i].log_sum_exp);
    }
  }

  void combine_block(const CombinerInput& input, std::span<const RowExponentials>, size_t first,
                     std::span<float> joint) const override {
    for (size_t i = 0; i < weights_.size(); ++i) {
      add_weighted(input.specialists[i].logits.data() + first, offsets_[i],
                   static_cast<float>(weights_[i]), i == 0, joint);
    }
  }

  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    take_logprobs(input, token, shares);
    return federation::account_of_product(weights_, log_normaliser_, shares);
  }

 private:
  std::vector<double> weights_;
  std::vector<float> offsets_;
  double log_normaliser_ = 0;
};

void require_count(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  throw Error(ErrorKind::kInvalidArgument, std::string("a combiner has ") + std::to_string(found) +
                                               " " + what + "; expected " +
                                               std::to_string(expected));
}

void require_range(const char* what, double value, double lowest, double largest) {
  if (value >= lowest && value <= largest) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string("a ") + what + " is " + std::to_string(value) + "; expected " +
                  std::to_string(lowest) + " to " + std::to_string(largest));
}

}  // namespace

void BlockCombiner::combine(const CombinerInput& input, std::span<float> joint) {
  begin(input);
  for (size_t first = 0; first < joint.size(); first += kJointBlock) {
    combine_block(input, {}, first,
                  joint.subspan(first, std::min(kJointBlock, joint.size() - first)));
  }
  if (is_normalised()) return;
  const double log_normaliser = log_sum_exp(joint);
  set_log_normaliser(log_normaliser);
  for (float& value : joint) value -= static_cast<float>(log_normaliser);
}

std::string_view combiner_kind_name(CombinerSpec::Kind kind) {
  switch (kind) {
    case CombinerSpec::Kind::kMixture: return "mixture";
    case CombinerSpec::Kind::kGate: return "gate";
    case CombinerSpec::Kind::kProduct: return "product";
  }
  return "?";
}

ExponentialSum sum_exponentials(std::span<const float> logits, float* exponentials) {
  ExponentialSum of{largest(logits), 0.0};
  if (of.max == -std::numeric_limits<float>::infinity()) {  // all ruled out, or no number at all
    const bool is_number = std::ranges::none_of(logits, [](float x) { return std::isnan(x); });
    of.sum = is_number ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    if (exponentials != nullptr) std::fill_n(exponentials, logits.size(), 0.0F);
    return of;
  }
  std::array<float, kJointBlock> own;
  float* to = exponentials != nullptr ? exponentials : own.data();
  of.sum = exponentials_of(logits.data(), logits.size(), of.max, to);
  return of;
}

void ExponentialTotal::add(const ExponentialSum& block) {
  if (block.sum == 0.0) return;  // nothing but tokens that are ruled out
  const double max = block.max;
  if (sum_ == 0.0 || max > max_) {
    sum_ = (sum_ == 0.0 ? 0.0 : sum_ * std::exp(max_ - max)) + block.sum;
    max_ = max;
  } else {
    sum_ += block.sum * std::exp(max - max_);
  }
}

double ExponentialTotal::log() const { return max_ + std::log(sum_); }

double log_sum_exp(std::span<const float> logits) {
  ExponentialTotal total;
  for (size_t first = 0; first < logits.size(); first += kJointBlock) {
    const size_t count = std::min(kJointBlock, logits.size() - first);
    total.add(sum_exponentials(logits.subspan(first, count), nullptr));
  }
  return total.log();
}

std::unique_ptr<Combiner> make_combiner(const CombinerSpec& spec, size_t num_specialists) {
  if (spec.kind == CombinerSpec::Kind::kGate) {
    require_count("gate weights", spec.gate.size(),
                  num_specialists * static_cast<size_t>(spec.hidden_size));
    require_count("gate biases", spec.bias.size(), num_specialists);
    for (const auto* values : {&spec.gate, &spec.bias}) {
      for (const float value : *values) {
        require_range("gate's number", double{value}, -federation::kLargestGateWeight,
                      federation::kLargestGateWeight);
      }
    }
    return std::make_unique<Gate>(spec, num_specialists);
  }
  require_count("weights", spec.weights.size(), num_specialists);
  const bool is_product = spec.kind == CombinerSpec::Kind::kProduct;
  const double lowest = is_product ? -federation::kLargestExponent : 0.0;
  const double largest = is_product ? federation::kLargestExponent : 1.0;
  double sum = 0;
  for (const double weight : spec.weights) {
    require_range(is_product ? "product's weight" : "mixture's weight", weight, lowest, largest);
    sum += weight;
  }
  if (is_product) return std::make_unique<Product>(spec.weights);
  if (std::abs(sum - 1) > federation::kSumTolerance) {
    throw Error(ErrorKind::kInvalidArgument,
                "the weights of a mixture sum to " + std::to_string(sum) + "; expected 1");
  }
  return std::make_unique<Mixture>(spec.weights);
}

}  // namespace vitrine
