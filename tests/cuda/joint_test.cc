// SPDX-License-Identifier: Apache-2.0
// A federation's joint on the device, beside what the host's combiners make of the same rows.
#include "kernels/cuda/federation/joint.h"

#include <array>

#include "federation/block_combiner.h"
#include "tests/cuda/cuda_test_util.h"
#include "vitrine/federation.h"

namespace vitrine::kernels::cuda::testing {
namespace {

using Kind = CombinerSpec::Kind;
constexpr Kind kKinds[] = {Kind::kMixture, Kind::kGate, Kind::kProduct};

// On a GPU exp and log of doubles are CUDA's: a last bit of a double, so one of a float.
#if defined(VITRINE_TESTS_ON_GPU)
constexpr bool kOnGpu = true;
#else
constexpr bool kOnGpu = false;
#endif
bool close(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || (kOnGpu && std::fabs(a - b) <= 1e-13 * std::fabs(b));
}
bool close(float a, float b) {
  return same_bits(a, b) || (kOnGpu && std::fabs(a - b) <= 1e-6f * (1 + std::fabs(b)));
}

CombinerSpec combiner(Kind kind, size_t specialists, int64_t hidden, Random& random) {
  CombinerSpec spec;
  spec.kind = kind;
  if (kind == Kind::kGate) {
    spec.hidden_size = hidden;
    spec.gate = random.normals(specialists * static_cast<size_t>(hidden), 0.3f);
    spec.bias = random.normals(specialists);
    return spec;
  }
  double total = 0;
  for (size_t i = 0; i < specialists; ++i) total += spec.weights.emplace_back(0.1 + double(i % 5));
  for (double& weight : spec.weights) weight /= total;
  if (kind == Kind::kProduct) spec.weights[0] = -0.75;
  return spec;
}

/// What the federation's threads make of one row (src/engine/federate/federation_combine.cc), and
/// the account of one token.
struct HostJoint {
  std::vector<float> joint;
  std::vector<double> log_sum_exps;
  double log_normaliser = 0;
  JointScore score;
  std::vector<SpecialistShare> shares;
};

HostJoint host_joint(const CombinerSpec& spec, std::span<const std::span<const float>> logits,
                     std::span<const float> hidden, int32_t token) {
  const size_t vocab = logits[0].size(), count = logits.size();
  const auto made = make_combiner(spec, count);
  auto& of_blocks = dynamic_cast<BlockCombiner&>(*made);
  HostJoint host;
  host.joint.resize(vocab);
  std::vector<std::vector<float>> exponentials(count, std::vector<float>(vocab));
  std::vector<std::vector<float>> most(count);
  std::vector<SpecialistRow> rows;
  std::vector<RowExponentials> kept;
  const auto each_block = [vocab](const auto& of) {
    for (size_t first = 0; first < vocab; first += kJointBlock) {
      of(first, std::min(kJointBlock, vocab - first));
    }
  };
  for (size_t i = 0; i < count; ++i) {
    ExponentialTotal total;
    each_block([&](size_t first, size_t size) {
      const ExponentialSum sum =
          sum_exponentials(logits[i].subspan(first, size), exponentials[i].data() + first);
      total.add(sum);
      most[i].push_back(sum.max);
    });
    rows.push_back({logits[i], total.log()});
    host.log_sum_exps.push_back(total.log());
    kept.push_back({exponentials[i], most[i]});
  }
  if (!of_blocks.uses_exponentials()) kept.clear();
  const CombinerInput input{rows, hidden};
  of_blocks.begin(input);
  ExponentialTotal total;
  each_block([&](size_t first, size_t size) {
    const std::span<float> part = std::span(host.joint).subspan(first, size);
    of_blocks.combine_block(input, kept, first, part);
    if (!of_blocks.is_normalised()) total.add(sum_exponentials(part, nullptr));
  });
  if (!of_blocks.is_normalised()) {
    host.log_normaliser = total.log();
    of_blocks.set_log_normaliser(host.log_normaliser);
    for (float& value : host.joint) value -= static_cast<float>(host.log_normaliser);
  }
  host.shares.resize(count);
  host.score = made->explain(input, token, host.shares);
  return host;
}

/// Specialists' rows, each in memory of its own, and a joint of some of them.
struct JointRun {
  JointRun(const CombinerSpec& spec, size_t specialists, size_t vocab,
           const std::vector<std::vector<float>>& rows, const std::vector<float>& hidden,
           const std::vector<int32_t>& which)
      : joints(which.size() / (specialists + 1)),
        states(hidden),
        gate(spec.gate),
        bias(spec.bias),
        picked(which),
        ids(joints),
        best(joints * 2),
        sums(joints * specialists * static_cast<size_t>(joint_blocks(int64_t(vocab)))),
        logits(joints * vocab),
        values(joints * static_cast<size_t>(joint_values(int64_t(specialists)))) {
    std::vector<const float*> begins;
    for (const auto& of : rows) begins.push_back(sources.emplace_back(of).data());
    begins.push_back(states.data());
    pointers.emplace_back(begins);
    joint.kind = spec.kind == Kind::kGate      ? JointKind::kGate
                 : spec.kind == Kind::kProduct ? JointKind::kProduct
                                               : JointKind::kMixture;
    joint.specialists = static_cast<int32_t>(specialists);
    joint.vocab = static_cast<int64_t>(vocab);
    std::ranges::copy(spec.weights, joint.weights);
    joint.hidden = spec.hidden_size;
    joint.gate = gate.data();
    joint.bias = bias.data();
    joint.sources = pointers[0].data();
    joint.rows = picked.data();
    joint.sums = sums.data();
    joint.logits = logits.data();
    joint.values = values.data();
    joint.chosen_ids = ids.data();
    joint.best_ids = best.data();
    joint.best_stride = 2;
  }
  void run() { ASSERT_TRUE(ok(joint_rows(joint, static_cast<int32_t>(joints), nullptr))); }
  std::vector<float> row(size_t r) const {
    const auto vocab = static_cast<size_t>(joint.vocab);
    return {logits.data() + r * vocab, logits.data() + (r + 1) * vocab};
  }
  const double* values_of(size_t r) const {
    return values.data() + r * static_cast<size_t>(joint_values(joint.specialists));
  }

  size_t joints;
  std::vector<DeviceArray<float>> sources;
  DeviceArray<float> states, gate, bias;
  std::vector<DeviceArray<const float*>> pointers;
  DeviceArray<int32_t> picked, ids, best;
  DeviceArray<JointSum> sums;
  DeviceArray<float> logits;
  DeviceArray<double> values;
  Joint joint;
};

constexpr int64_t kHidden = 300;  // more than a gate's products at once
constexpr size_t kSourceRows = 3, kJoints = 2;

/// Rows of every specialist, of which two rows of a joint are made.
struct Case {
  Case(Kind kind, size_t specialists, size_t vocab, float scale, uint32_t seed)
      : random(seed), count(specialists), vocab_size(vocab) {
    spec = combiner(kind, specialists, kHidden, random);
    for (size_t i = 0; i < specialists; ++i) {
      rows.push_back(random.normals(kSourceRows * vocab, scale));
    }
    hidden = random.normals(kSourceRows * kHidden);
    for (size_t i = 0; i < kJoints * (specialists + 1); ++i) {
      which.push_back(random.integer(0, kSourceRows - 1));
    }
  }
  JointRun on_device() const { return {spec, count, vocab_size, rows, hidden, which}; }
  HostJoint on_host(size_t row, int32_t token) const {
    std::vector<std::span<const float>> logits;
    const auto of = [&](size_t i) { return static_cast<size_t>(which[row * (count + 1) + i]); };
    for (size_t i = 0; i < count; ++i) {
      logits.push_back(std::span(rows[i]).subspan(of(i) * vocab_size, vocab_size));
    }
    return host_joint(spec, logits, std::span(hidden).subspan(of(count) * kHidden, kHidden), token);
  }

  Random random;
  size_t count, vocab_size;
  CombinerSpec spec;
  std::vector<std::vector<float>> rows;
  std::vector<float> hidden;
  std::vector<int32_t> which;
};

void expect_host(const Case& of, const std::string& what) {
  JointRun run = of.on_device();
  run.run();
  std::vector<int32_t> tokens;
  for (size_t row = 0; row < kJoints; ++row) {
    tokens.push_back(static_cast<int32_t>((row * 7919 + 3) % of.vocab_size));
    run.ids[row] = tokens.back();
    const auto last =
        static_cast<int32_t>(of.vocab_size) - 1;  // the runner-up, unless it is chosen
    run.best[2 * row] = row == 0 ? tokens.back() : last;
    run.best[2 * row + 1] = row == 0 ? last : tokens.back();
  }
  ASSERT_TRUE(ok(joint_account(run.joint, kJoints, nullptr)));
  for (size_t row = 0; row < kJoints; ++row) {
    const HostJoint host = of.on_host(row, tokens[row]);
    const std::vector<float> joint = run.row(row);
    for (size_t t = 0; t < of.vocab_size; ++t) {
      ASSERT_TRUE(close(joint[t], host.joint[t]))
          << what << ", token " << t << ": " << joint[t] << " and " << host.joint[t];
    }
    const double* values = run.values_of(row);
    ASSERT_TRUE(close(values[0], host.log_normaliser)) << what;
    for (size_t i = 0; i < of.count; ++i) {
      ASSERT_TRUE(close(values[1 + i], host.log_sum_exps[i])) << what;
      ASSERT_TRUE(close(values[1 + of.count + i], host.shares[i].weight)) << what;
      const double logit = values[1 + 2 * of.count + i];
      ASSERT_TRUE(close(logit - values[1 + i], host.shares[i].logprob)) << what;
      const auto source_row = static_cast<size_t>(of.which[row * (of.count + 1) + i]);
      ASSERT_EQ(values[1 + 3 * of.count + i],
                double{of.rows[i][(source_row + 1) * of.vocab_size - 1]})
          << what;
    }
  }
}

TEST(CudaJoint, HasTheHostsBits) {
  uint32_t seed = 0;
  for (const Kind kind : kKinds) {
    for (const size_t specialists : {2, 3, 11}) {  // more than there are warps, too
      for (const size_t vocab : {5, 1023, 1024, 3001, 4100}) {
        if (specialists > 3 && vocab > 3001) continue;
        emulator::set_seed(++seed);
        // A scale of 30 has probabilities below the exponentials' floor: the long way.
        for (const float scale : {2.0f, 30.0f}) {
          expect_host(Case(kind, specialists, vocab, scale, seed),
                      std::string(combiner_kind_name(kind)) + " of " + std::to_string(specialists) +
                          " over " + std::to_string(vocab));
        }
      }
    }
  }
}

// What a block's threads have past the end are no logits: far below these.
TEST(CudaJoint, TheLastBlockEndsWithTheVocabulary) {
  for (const Kind kind : kKinds) {
    Case of(kind, 2, 1100, 2.0f, 4);
    for (auto& rows : of.rows) {
      for (float& logit : rows) logit += 150;
    }
    expect_host(of, "far from 0");
  }
}

// More blocks than a warp has lanes, whose largest logits rise and fall.
TEST(CudaJoint, ManyBlocks) {
  for (const Kind kind : kKinds) {
    Case of(kind, 2, 70 * 1024 + 17, 3.0f, 5);
    for (auto& rows : of.rows) {
      for (size_t t = 0; t < rows.size(); ++t) {
        rows[t] += 4 * std::sin(static_cast<float>(t / 1024));
      }
    }
    expect_host(of, "many blocks");
  }
}

TEST(CudaJoint, TokensThatAreRuledOut) {
  for (const Kind kind : {Kind::kMixture, Kind::kGate}) {
    Case of(kind, 2, 3000, 2.0f, 6);
    for (size_t row = 0; row < kSourceRows; ++row) {
      const auto begin = of.rows[0].begin() + static_cast<int64_t>(row * 3000);
      std::fill_n(begin, 1024, -INFINITY);  // a whole block, the first
      of.rows[0][row * 3000 + 2500] = -INFINITY;
      of.rows[1][row * 3000 + 2500] = -INFINITY;  // both
    }
    expect_host(of, "ruled out");
    if (kind == Kind::kGate) continue;
    of.spec.weights = {0, 1};
    expect_host(of, "without weight");
  }
}

TEST(CudaJoint, WhatIsNoNumberStaysNone) {
  for (const Kind kind : kKinds) {
    for (const float broken : {NAN, INFINITY}) {
      Case of(kind, 2, 2100, 2.0f, 7);
      for (size_t row = 0; row < kSourceRows; ++row) of.rows[1][row * 2100 + 1500] = broken;
      JointRun run = of.on_device();
      run.run();
      EXPECT_FALSE(std::isnan(run.values_of(0)[1]));
      EXPECT_TRUE(std::isnan(run.values_of(0)[2]));
      EXPECT_TRUE(kind != Kind::kProduct || std::isnan(run.row(0)[3]));
    }
  }
}

TEST(CudaJoint, ARowAloneAndBesideAnother) {
  for (const Kind kind : kKinds) {
    const Case of(kind, 3, 2500, 8.0f, 8);
    JointRun both = of.on_device();
    both.run();
    for (size_t row = 0; row < kJoints; ++row) {
      emulator::set_seed(row + 9);
      Case single = of;
      single.which.assign(of.which.begin() + static_cast<int64_t>(row * 4),
                          of.which.begin() + static_cast<int64_t>(row * 4 + 4));
      JointRun alone = single.on_device();
      alone.run();
      EXPECT_TRUE(same_bits(alone.row(0), both.row(row)));
      for (int i = 0; i < 1 + 2 * 3; ++i) {
        EXPECT_EQ(alone.values_of(0)[i], both.values_of(row)[i]);
      }
    }
  }
}

TEST(CudaJoint, NothingWasChosen) {
  const Case of(Kind::kMixture, 2, 100, 2.0f, 9);
  JointRun run = of.on_device();
  run.ids[0] = -1;
  run.ids[1] = 40;
  for (size_t i = 0; i < 2 * kJoints; ++i) run.best[i] = -1;
  ASSERT_TRUE(ok(joint_account(run.joint, kJoints, nullptr)));
  EXPECT_EQ(run.values_of(0)[5], 0.0);
  EXPECT_EQ(run.values_of(0)[6], 0.0);
  const auto row = static_cast<size_t>(of.which[3 + 1]);
  EXPECT_EQ(run.values_of(1)[6], double{of.rows[1][row * 100 + 40]});
}

TEST(CudaJoint, RefusesWhatItCannotDo) {
  Joint joint{.specialists = 0, .vocab = 10};
  EXPECT_EQ(joint_rows(joint, 1, nullptr).code, kInvalidArguments);
  joint.specialists = 65;
  EXPECT_EQ(joint_account(joint, 1, nullptr).code, kInvalidArguments);
  joint.specialists = 2;
  EXPECT_EQ(joint_rows(joint, 0, nullptr).code, kInvalidArguments);
  EXPECT_EQ(joint_rows(joint, 40000, nullptr).code, kInvalidArguments);
  joint.vocab = 0;
  EXPECT_EQ(joint_rows(joint, 1, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
