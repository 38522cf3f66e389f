// SPDX-License-Identifier: Apache-2.0
// Combiners against the same sums in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "federation/block_combiner.h"
#include "vitrine/federation.h"

namespace vitrine {
namespace {

struct Case {
  std::vector<std::vector<float>> logits;
  std::vector<SpecialistRow> rows;
  std::vector<float> hidden;
  CombinerInput input() const { return {rows, hidden}; }
};

double exact_log_sum_exp(const std::vector<float>& logits) {
  double most = -1e300, sum = 0;
  for (const float logit : logits) most = std::max(most, double{logit});
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  return most + std::log(sum);
}

// `size`: how far logits lie apart.
Case make_case(size_t specialists, size_t vocabulary, float size, uint32_t seed) {
  Case made;
  uint32_t state = seed;
  const auto next = [&state] {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / static_cast<float>(1 << 24);
  };
  made.logits.resize(specialists, std::vector<float>(vocabulary));
  for (std::vector<float>& row : made.logits) {
    for (float& logit : row) logit = size * (next() - 0.5F) + 3.0F;
  }
  for (const std::vector<float>& row : made.logits) made.rows.push_back({row, log_sum_exp(row)});
  made.hidden.resize(37);
  for (float& value : made.hidden) value = 4.0F * (next() - 0.5F);
  return made;
}

TEST(LogSumExp, IsThatOfDoubles) {
  for (const size_t vocabulary : {1, 2, 255, 256, 257, 8192, 50001}) {
    for (const float size : {0.0F, 1.0F, 30.0F, 300.0F}) {
      const Case made = make_case(1, vocabulary, size, 7);
      EXPECT_NEAR(log_sum_exp(made.logits[0]), exact_log_sum_exp(made.logits[0]),
                  2e-7 * std::max(1.0, std::abs(made.rows[0].log_sum_exp)))
          << vocabulary << " " << size;
    }
  }
}

void expect_joint(Combiner& combiner, const Case& made, const std::vector<double>& expected,
                  ShareKind kind) {
  const size_t vocabulary = made.logits[0].size();
  std::vector<float> joint(vocabulary);
  combiner.combine(made.input(), joint);
  double total = 0;
  for (size_t token = 0; token < vocabulary; ++token) {
    EXPECT_NEAR(joint[token], expected[token], 3e-6 * std::max(1.0, std::abs(expected[token])));
    total += std::exp(double{joint[token]});
  }
  EXPECT_NEAR(total, 1.0, 1e-5);
  std::vector<SpecialistShare> shares(made.rows.size());
  for (const size_t token : {size_t{0}, vocabulary / 3, vocabulary - 1}) {
    const JointScore score = combiner.explain(made.input(), static_cast<int32_t>(token), shares);
    EXPECT_NEAR(score.logprob, expected[token], 3e-7 * std::max(1.0, std::abs(expected[token])));
    double sum = kind == ShareKind::kTerm ? -score.log_normaliser : 0.0;
    for (const SpecialistShare& share : shares) sum += share.share;
    EXPECT_NEAR(sum, kind == ShareKind::kTerm ? score.logprob : 1.0, 1e-12);
  }
}

std::vector<double> mixed(const Case& made, const std::vector<double>& weights) {
  std::vector<double> joint(made.logits[0].size());
  for (size_t token = 0; token < joint.size(); ++token) {
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      sum +=
          weights[i] * std::exp(double{made.logits[i][token]} - exact_log_sum_exp(made.logits[i]));
    }
    joint[token] = std::log(sum);
  }
  return joint;
}

TEST(Mixture, IsTheWeightedSum) {
  for (const size_t vocabulary : {1, 300, 8192}) {
    const Case made = make_case(3, vocabulary, 20.0F, 11);
    CombinerSpec spec;
    spec.weights = {0.2, 0.5, 0.3};
    const auto combiner = make_combiner(spec, 3);
    EXPECT_EQ(combiner->name(), "mixture");
    expect_joint(*combiner, made, mixed(made, spec.weights), ShareKind::kResponsibility);
  }
}

TEST(Mixture, AWeightOfZeroTakesASpecialistOut) {
  const Case made = make_case(2, 500, 60.0F, 3);
  CombinerSpec spec;
  spec.weights = {0.0, 1.0};
  const auto combiner = make_combiner(spec, 2);
  std::vector<float> joint(500);
  combiner->combine(made.input(), joint);
  std::vector<SpecialistShare> shares(2);
  for (int32_t token = 0; token < 500; ++token) {
    const auto at = static_cast<size_t>(token);
    EXPECT_NEAR(joint[at], double{made.logits[1][at]} - made.rows[1].log_sum_exp, 3e-5);
    const JointScore score = combiner->explain(made.input(), token, shares);
    EXPECT_TRUE(std::isfinite(score.logprob));
    EXPECT_EQ(shares[0].share, 0.0);
    EXPECT_EQ(shares[1].share, 1.0);
  }
}

TEST(Gate, WeightsAreASoftmaxOfTheHiddenState) {
  const Case made = make_case(4, 777, 15.0F, 5);
  CombinerSpec spec;
  spec.kind = CombinerSpec::Kind::kGate;
  spec.hidden_size = 37;
  spec.bias = {0.1F, -0.2F, 0.0F, 1.0F};
  for (size_t i = 0; i < 4 * 37; ++i) {
    spec.gate.push_back(0.1F * static_cast<float>(static_cast<int>(i * 31 % 17) - 8));
  }
  std::vector<double> weights(4);
  double total = 0;
  for (size_t i = 0; i < 4; ++i) {
    double sum = double{spec.bias[i]};
    for (size_t j = 0; j < 37; ++j) sum += double{spec.gate[i * 37 + j]} * double{made.hidden[j]};
    total += weights[i] = std::exp(sum);
  }
  for (double& weight : weights) weight /= total;
  const auto combiner = make_combiner(spec, 4);
  ASSERT_TRUE(combiner->needs_hidden_state());
  expect_joint(*combiner, made, mixed(made, weights), ShareKind::kResponsibility);
  Case without = make_case(4, 777, 15.0F, 5);
  without.hidden.clear();
  std::vector<float> joint(777);
  EXPECT_THROW(combiner->combine(without.input(), joint), Error);
}

TEST(Product, IsNormalisedOverTheVocabulary) {
  for (const std::vector<double>& weights :
       {std::vector<double>{0.5, 0.5}, {1.0, 1.0}, {2.0, -0.7}}) {
    const Case made = make_case(2, 4097, 12.0F, 9);
    CombinerSpec spec;
    spec.kind = CombinerSpec::Kind::kProduct;
    spec.weights = weights;
    std::vector<double> joint(4097);
    double sum = 0;
    for (size_t token = 0; token < joint.size(); ++token) {
      for (size_t i = 0; i < 2; ++i) {
        joint[token] +=
            weights[i] * (double{made.logits[i][token]} - exact_log_sum_exp(made.logits[i]));
      }
      sum += std::exp(joint[token]);
    }
    for (double& value : joint) value -= std::log(sum);
    const auto combiner = make_combiner(spec, 2);
    EXPECT_EQ(combiner->shares(), ShareKind::kTerm);
    expect_joint(*combiner, made, joint, ShareKind::kTerm);
  }
}

// As a federation's threads make it: exponentials first, then the row in parts.
struct Parts {
  explicit Parts(const Case& made) : rows(made.rows) {
    const size_t vocabulary = made.logits[0].size();
    exponentials.resize(rows.size(), std::vector<float>(vocabulary));
    block_max.resize(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      ExponentialTotal total;
      for (size_t first = 0; first < vocabulary; first += kJointBlock) {
        const size_t count = std::min(kJointBlock, vocabulary - first);
        const ExponentialSum sum = sum_exponentials(std::span(made.logits[i]).subspan(first, count),
                                                    exponentials[i].data() + first);
        total.add(sum);
        block_max[i].push_back(sum.max);
      }
      if (std::isnan(total.log())) {
        EXPECT_TRUE(std::isnan(rows[i].log_sum_exp));
      } else {
        EXPECT_EQ(total.log(), rows[i].log_sum_exp);
      }
      of_rows.push_back({exponentials[i], block_max[i]});
    }
  }
  std::vector<float> joint(Combiner& any) {
    auto& combiner = dynamic_cast<BlockCombiner&>(any);
    const CombinerInput input{rows, {}};
    std::vector<float> to(rows[0].logits.size());
    combiner.begin(input);
    for (size_t first = 0; first < to.size(); first += kJointBlock) {
      const size_t count = std::min(kJointBlock, to.size() - first);
      combiner.combine_block(input, of_rows, first, std::span(to).subspan(first, count));
    }
    if (!combiner.is_normalised()) {
      const double sum = log_sum_exp(to);
      combiner.set_log_normaliser(sum);
      for (float& value : to) value -= static_cast<float>(sum);
    }
    return to;
  }

  std::vector<SpecialistRow> rows;
  std::vector<std::vector<float>> exponentials, block_max;
  std::vector<RowExponentials> of_rows;
};

TEST(Combiners, PartsMakeTheSameRow) {
  for (const size_t vocabulary : {1, 1023, 1024, 1025, 8192, 9001}) {
    for (const float size : {1.0F, 20.0F, 170.0F, 900.0F}) {  // the last: below exp(-87)
      const Case made = make_case(3, vocabulary, size, 21);
      Parts parts(made);
      CombinerSpec spec;
      spec.weights = {0.2, 0.0, 0.8};
      const auto mixture = make_combiner(spec, 3);
      std::vector<float> joint = parts.joint(*mixture);
      const std::vector<double> expected = mixed(made, spec.weights);
      std::vector<float> whole(vocabulary);
      mixture->combine(made.input(), whole);
      for (size_t token = 0; token < vocabulary; ++token) {
        const double tolerance = 1e-6 * std::max(3.0, std::abs(double{whole[token]}));
        ASSERT_NEAR(joint[token], whole[token], tolerance) << vocabulary << " " << size;
        if (expected[token] > -700) {  // else exp in double has lost bits
          // The long way rounds a logit less its log-sum-exp to float32.
          const double rounding = 1e-7 * double{size};
          ASSERT_NEAR(joint[token], expected[token], 3 * tolerance + rounding)
              << vocabulary << " " << size;
        }
      }
      spec.kind = CombinerSpec::Kind::kProduct;
      const auto product = make_combiner(spec, 3);
      product->combine(made.input(), whole);
      joint = parts.joint(*product);
      EXPECT_EQ(joint, whole);
    }
  }
}

// A model may rule tokens out: whole blocks of them, by every specialist, and no NaN comes of it.
TEST(Combiners, RuledOutTokensHaveNoProbability) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  Case made = make_case(2, 3000, 10.0F, 31);
  for (size_t token = 1024; token < 2100; ++token) {
    made.logits[0][token] = made.logits[1][token] = kNever;
  }
  made.logits[0][5] = kNever;  // by one of them
  for (size_t i = 0; i < 2; ++i) {
    made.rows[i].log_sum_exp = log_sum_exp(made.logits[i]);
    EXPECT_NEAR(made.rows[i].log_sum_exp, exact_log_sum_exp(made.logits[i]), 2e-6);
  }
  CombinerSpec spec;
  spec.weights = {0.5, 0.5};
  const std::vector<double> expected = mixed(made, spec.weights);
  const std::vector<float> joint = Parts(made).joint(*make_combiner(spec, 2));
  for (size_t token = 0; token < joint.size(); ++token) {
    if (token >= 1024 && token < 2100) {
      EXPECT_LT(joint[token], -1e20F);
    } else {
      EXPECT_NEAR(joint[token], expected[token], 1e-5) << token;
    }
  }
}

// What a broken specialist says makes the joint no number, so that nobody takes it for one.
TEST(Combiners, ASpecialistThatIsNoNumberMakesTheJointNone) {
  Case made = make_case(2, 2000, 10.0F, 32);
  made.logits[1][1500] = std::numeric_limits<float>::quiet_NaN();
  made.rows[1].log_sum_exp = log_sum_exp(made.logits[1]);
  EXPECT_TRUE(std::isnan(made.rows[1].log_sum_exp));
  CombinerSpec spec;
  spec.weights = {0.5, 0.5};
  for (const CombinerSpec::Kind kind :
       {CombinerSpec::Kind::kMixture, CombinerSpec::Kind::kProduct}) {
    spec.kind = kind;
    const auto combiner = make_combiner(spec, 2);
    std::vector<float> whole(2000);
    combiner->combine(made.input(), whole);
    for (const float value : whole) ASSERT_TRUE(std::isnan(value));
    for (const float value : Parts(made).joint(*combiner)) ASSERT_TRUE(std::isnan(value));
  }
}

TEST(Combiners, OfAnotherSizeAreRefused) {
  CombinerSpec spec;
  spec.weights = {0.5, 0.5};
  EXPECT_THROW(make_combiner(spec, 3), Error);
  spec.kind = CombinerSpec::Kind::kGate;
  spec.hidden_size = 4;
  EXPECT_THROW(make_combiner(spec, 2), Error);
}

/// A spec that a host made is held to what a file is.
TEST(Combiners, NumbersOutOfRangeAreRefused) {
  const auto refuses = [](CombinerSpec::Kind kind, std::vector<double> weights, float gate,
                          float bias) {
    CombinerSpec spec;
    spec.kind = kind;
    spec.weights = std::move(weights);
    spec.hidden_size = 1;
    spec.gate = {0.5F, gate};
    spec.bias = {bias, -1e6F};
    try {
      make_combiner(spec, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("expected"), std::string::npos) << error.what();
      return true;
    }
    return false;
  };
  using Kind = CombinerSpec::Kind;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(refuses(Kind::kMixture, {0.0, 1.0}, 0, 0));
  for (const std::vector<double>& weights :
       {std::vector{-0.5, 1.5}, {0.5, nan}, {0.5, 0.4}, {0.6, 0.6}}) {
    EXPECT_TRUE(refuses(Kind::kMixture, weights, 0, 0)) << weights[0];
  }
  EXPECT_FALSE(refuses(Kind::kProduct, {-100.0, 100.0}, 0, 0));
  for (const double weight : {100.1, -1e300, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(refuses(Kind::kProduct, {0.5, weight}, 0, 0)) << weight;
  }
  EXPECT_FALSE(refuses(Kind::kGate, {}, -1e6F, 1e6F));
  for (const float bad : {2e6F, -2e6F, static_cast<float>(nan)}) {
    EXPECT_TRUE(refuses(Kind::kGate, {}, bad, 0)) << bad;
    EXPECT_TRUE(refuses(Kind::kGate, {}, 0, bad)) << bad;
  }
}

}  // namespace
}  // namespace vitrine
