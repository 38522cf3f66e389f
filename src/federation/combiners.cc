// Mixture, gate and product of experts (Jacobs et al. 1991; Hinton 2002), over whole vocabularies.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "federation/row_math.h"
#include "vitrine/federation.h"

namespace vitrine {

using federation::exp_float;
using federation::log_float;

namespace {

constexpr size_t kBlock = 256;  // tokens worked on at once

// In place of log(0): a specialist without weight adds nothing and no NaN.
constexpr float kNoWeight = -1e30F;

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

// The largest, by lanes: the maximum has no order.
VITRINE_ROW_LOOP float largest(std::span<const float> values) {
  constexpr size_t kLanes = 64;
  std::array<float, kLanes> most;
  most.fill(-std::numeric_limits<float>::infinity());
  size_t first = 0;
  for (; first + kLanes <= values.size(); first += kLanes) {
    for (size_t t = 0; t < kLanes; ++t) most[t] = std::max(most[t], values[first + t]);
  }
  for (size_t t = 0; first + t < values.size(); ++t) most[t] = std::max(most[t], values[first + t]);
  return *std::ranges::max_element(most);
}

// Tokens [first, first + count) of a row whose log-probabilities are a weighted mixture.
void mix_block(const CombinerInput& input, std::span<const float> offsets, size_t first,
               size_t count, float* joint) {
  Block most, sum, x;
  most.fill(-std::numeric_limits<float>::infinity());
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

class Mixture : public Combiner {
 public:
  explicit Mixture(std::vector<double> weights)
      : weights_(std::move(weights)), offsets_(weights_.size()) {}

  std::string_view name() const override { return "mixture"; }

  void combine(const CombinerInput& input, std::span<float> joint) override {
    for (size_t i = 0; i < weights_.size(); ++i) {
      offsets_[i] =
          weights_[i] > 0
              ? static_cast<float>(std::log(weights_[i]) - input.specialists[i].log_sum_exp)
              : kNoWeight;
    }
    for (size_t first = 0; first < joint.size(); first += kBlock) {
      mix_block(input, offsets_, first, std::min(kBlock, joint.size() - first),
                joint.data() + first);
    }
  }

  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    double most = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < weights_.size(); ++i) {
      const SpecialistRow& row = input.specialists[i];
      shares[i].logprob = double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp;
      shares[i].weight = weights_[i];
      shares[i].share = std::log(weights_[i]) + shares[i].logprob;
      most = std::max(most, shares[i].share);
    }
    double sum = 0;
    for (const SpecialistShare& share : shares) sum += std::exp(share.share - most);
    const double joint = most + std::log(sum);
    for (SpecialistShare& share : shares) share.share = std::exp(share.share - joint);
    return {joint, 0.0};
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

  void combine(const CombinerInput& input, std::span<float> joint) override {
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
    Mixture::combine(input, joint);
  }

 private:
  CombinerSpec spec_;
};

class Product final : public Combiner {
 public:
  explicit Product(std::vector<double> weights) : weights_(std::move(weights)) {}

  std::string_view name() const override { return "product"; }
  ShareKind shares() const override { return ShareKind::kTerm; }

  void combine(const CombinerInput& input, std::span<float> joint) override {
    std::fill(joint.begin(), joint.end(), 0.0F);
    for (size_t i = 0; i < weights_.size(); ++i) {
      const auto weight = static_cast<float>(weights_[i]);
      const auto offset = static_cast<float>(-input.specialists[i].log_sum_exp);
      const float* logits = input.specialists[i].logits.data();
      for (size_t t = 0; t < joint.size(); ++t) joint[t] += weight * (logits[t] + offset);
    }
    log_normaliser_ = log_sum_exp(joint);
    const auto normaliser = static_cast<float>(log_normaliser_);
    for (float& value : joint) value -= normaliser;
  }

  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    double joint = -log_normaliser_;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const SpecialistRow& row = input.specialists[i];
      shares[i].logprob = double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp;
      shares[i].weight = weights_[i];
      shares[i].share = weights_[i] * shares[i].logprob;
      joint += shares[i].share;
    }
    return {joint, log_normaliser_};
  }

 private:
  std::vector<double> weights_;
  double log_normaliser_ = 0;
};

void require_count(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  throw Error(ErrorKind::kInvalidArgument, std::string("a combiner has ") + std::to_string(found) +
                                               " " + what + "; expected " +
                                               std::to_string(expected));
}

}  // namespace

std::string_view combiner_kind_name(CombinerSpec::Kind kind) {
  switch (kind) {
    case CombinerSpec::Kind::kMixture: return "mixture";
    case CombinerSpec::Kind::kGate: return "gate";
    case CombinerSpec::Kind::kProduct: return "product";
  }
  return "?";
}

double log_sum_exp(std::span<const float> logits) {
  constexpr size_t kLanes = 8;
  const float most = largest(logits);
  std::array<double, kLanes> sums{};
  Block x, values;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const size_t count = std::min(kBlock, logits.size() - first);
    for (size_t t = 0; t < count; ++t) x[t] = logits[first + t] - most;
    std::fill(x.begin() + static_cast<int64_t>(count), x.end(), 0.0F);
    values.fill(0.0F);
    add_exp(x, values);
    std::fill(values.begin() + static_cast<int64_t>(count), values.end(), 0.0F);
    for (size_t t = 0; t < kBlock; ++t) sums[t % kLanes] += double{values[t]};
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return double{most} + std::log(sum);
}

std::unique_ptr<Combiner> make_combiner(const CombinerSpec& spec, size_t num_specialists) {
  if (spec.kind == CombinerSpec::Kind::kGate) {
    require_count("gate weights", spec.gate.size(),
                  num_specialists * static_cast<size_t>(spec.hidden_size));
    require_count("gate biases", spec.bias.size(), num_specialists);
    return std::make_unique<Gate>(spec, num_specialists);
  }
  require_count("weights", spec.weights.size(), num_specialists);
  if (spec.kind == CombinerSpec::Kind::kProduct) return std::make_unique<Product>(spec.weights);
  return std::make_unique<Mixture>(spec.weights);
}

}  // namespace vitrine
