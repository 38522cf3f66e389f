// SPDX-License-Identifier: Apache-2.0
// Choices made where the logits are.
#include "kernels/cuda/sample/sample.h"

#include <numeric>

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

using Kind = SampleStep::Kind;

struct Chosen {
  int32_t id;
  float candidates, probability;
};

std::vector<Chosen> run(const std::vector<float>& logits, int32_t rows,
                        const std::vector<std::vector<SampleStep>>& steps) {
  DeviceArray<float> input(logits);
  DeviceArray<SampleStep> all(static_cast<size_t>(rows * kMaxSampleSteps));
  for (size_t row = 0; row < steps.size(); ++row) {
    std::ranges::copy(steps[row], all.data() + row * kMaxSampleSteps);
  }
  DeviceArray<int32_t> ids(static_cast<size_t>(rows));
  DeviceArray<float> facts(static_cast<size_t>(kSampleFacts * rows));
  DeviceArray<float> records(static_cast<size_t>(3 * rows));
  Sampling sampling;
  sampling.vocab = static_cast<int64_t>(logits.size()) / rows;
  sampling.logits = input.data();
  sampling.steps = all.data();
  sampling.chosen_ids = ids.data();
  sampling.facts = facts.data();
  sampling.records = records.data() + 1;
  sampling.record_stride = 3;
  EXPECT_TRUE(ok(sample_rows(sampling, rows, nullptr)));
  std::vector<Chosen> chosen;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    const float* of_row = facts.data() + row * kSampleFacts;
    chosen.push_back({ids[row], of_row[0], of_row[1]});
    EXPECT_EQ(of_row[2], 0.0f);
    EXPECT_EQ(of_row[3], 0.0f);
    if (ids[row] < 0) continue;
    const size_t at = row * static_cast<size_t>(sampling.vocab) + static_cast<size_t>(ids[row]);
    EXPECT_EQ(records[3 * row + 1], logits[at]);
    EXPECT_TRUE(std::isnan(records[3 * row + 2])) << "written beside";
  }
  return chosen;
}

// What is left of a row, in double: ids and probabilities, ascending ids.
struct Left {
  std::vector<int32_t> ids;
  std::vector<double> probs;
};

Left reference(const std::vector<float>& logits, const std::vector<SampleStep>& steps) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return logits[static_cast<size_t>(id)] == -INFINITY; });
  std::ranges::stable_sort(order, std::greater(),
                           [&](int32_t id) { return logits[static_cast<size_t>(id)]; });
  double divisor = 1;
  const auto weight = [&](int32_t id) {
    return std::exp(
        (double{logits[static_cast<size_t>(id)]} - logits[static_cast<size_t>(order[0])]) /
        divisor);
  };
  for (const SampleStep& step : steps) {
    if (step.kind == Kind::kDivide) divisor *= step.a;
    if (step.kind == Kind::kTopK) order.resize(std::min(order.size(), static_cast<size_t>(step.a)));
    if (step.kind == Kind::kMinP) {
      std::erase_if(order, [&](int32_t id) { return std::log(weight(id)) < step.a; });
    }
    if (step.kind == Kind::kTopP) {
      double total = 0, sum = 0;
      for (const int32_t id : order) total += weight(id);
      size_t kept = 0;
      while (kept < order.size() && sum < step.a * total) sum += weight(order[kept++]);
      order.resize(std::max<size_t>(kept, 1));
    }
  }
  Left left;
  left.ids = order;
  std::ranges::sort(left.ids);
  double total = 0;
  for (const int32_t id : left.ids) total += weight(id);
  for (const int32_t id : left.ids) left.probs.push_back(weight(id) / total);
  return left;
}

// Draws in the middle of every token's share find that token, for as many as `most`.
void expect_draws(const std::vector<float>& logits, std::vector<SampleStep> steps,
                  size_t most = 12) {
  const Left left = reference(logits, steps);
  std::vector<std::vector<SampleStep>> rows;
  std::vector<size_t> expected;
  double sum = 0;
  const size_t stride = std::max<size_t>(1, left.ids.size() / most);
  for (size_t i = 0; i < left.ids.size(); ++i) {
    if (left.probs[i] > 1e-6 && (i % stride == 0 || left.probs[i] > 0.1)) {
      rows.push_back(steps);
      rows.back().push_back({Kind::kDraw, sum + left.probs[i] / 2});
      expected.push_back(i);
    }
    sum += left.probs[i];
  }
  std::vector<float> all;
  for (size_t row = 0; row < rows.size(); ++row)
    all.insert(all.end(), logits.begin(), logits.end());
  const auto chosen = run(all, static_cast<int32_t>(rows.size()), rows);
  for (size_t row = 0; row < rows.size(); ++row) {
    EXPECT_EQ(chosen[row].id, left.ids[expected[row]]) << "row " << row;
    EXPECT_NEAR(chosen[row].probability, left.probs[expected[row]], 1e-5);
    EXPECT_EQ(chosen[row].candidates, static_cast<float>(left.ids.size()));
  }
}

TEST(CudaSample, DrawsFallWhereTheProbabilitiesSay) {
  Random random(18);
  uint64_t seed = 0;
  for (const size_t n : {2, 33, 1000, 3000}) {
    const auto logits = random.normals(n, 2.5f);
    emulator::set_seed(++seed);
    expect_draws(logits, {});
    expect_draws(logits, {{Kind::kDivide, 0.7}});
    expect_draws(logits, {{Kind::kDivide, 1.6}, {Kind::kTopK, 7}});
    expect_draws(logits, {{Kind::kDivide, 0.8}, {Kind::kTopK, 40}, {Kind::kTopP, 0.9}});
    expect_draws(logits, {{Kind::kTopP, 0.6}, {Kind::kDivide, 2.0}});
    expect_draws(logits, {{Kind::kDivide, 0.9}, {Kind::kMinP, std::log(0.05)}});
    expect_draws(logits, {{Kind::kTopK, 50},
                          {Kind::kTopP, 0.95},
                          {Kind::kMinP, std::log(0.1)},
                          {Kind::kDivide, 0.5}});
  }
}

TEST(CudaSample, TiesFallToTheLowerId) {
  std::vector<float> logits(500, 1.0f);
  for (const size_t id : {490, 20, 333}) logits[id] = 2.0f;
  logits[7] = -INFINITY;
  const auto chosen = run(logits, 1, {{{Kind::kGreedy}}});
  EXPECT_EQ(chosen[0].id, 20);
  EXPECT_EQ(chosen[0].probability, 1.0f);
  expect_draws(logits, {{Kind::kTopK, 2}});
  expect_draws(logits, {{Kind::kTopK, 9}});
  expect_draws(logits, {{Kind::kTopP, 0.2}}, 40);
  logits = {-0.0f, 0.0f, -1.0f};
  EXPECT_EQ(run(logits, 1, {{{Kind::kGreedy}}})[0].id, 0);
}

TEST(CudaSample, GreedyBehindOtherStepsAndTheLastOfAll) {
  Random random(19);
  const auto logits = random.normals(2222, 3.0f);
  const auto best = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  EXPECT_EQ(run(logits, 1, {{{Kind::kDivide, 0.3}, {Kind::kTopK, 5}, {Kind::kGreedy}}})[0].id,
            best);
  const auto one = run(logits, 1, {{{Kind::kTopK, 1}, {Kind::kDraw, 0.999999999999}}});
  EXPECT_EQ(one[0].id, best);
  EXPECT_EQ(one[0].probability, 1.0f);
  EXPECT_EQ(one[0].candidates, 1.0f);
  // A quotient beyond float's range: shifted first.
  EXPECT_EQ(run({3e38f, 1.0f}, 1, {{{Kind::kDivide, 0.001}, {Kind::kDraw, 0.5}}})[0].id, 0);
}

TEST(CudaSample, RowsWithoutAChoice) {
  const std::vector<std::vector<SampleStep>> steps = {{{Kind::kDraw, 0.5}}};
  EXPECT_EQ(run({1, NAN, 2}, 1, steps)[0].id, kBrokenRow);
  EXPECT_EQ(run({1, INFINITY, 2}, 1, steps)[0].id, kBrokenRow);
  EXPECT_EQ(run({-INFINITY, -INFINITY}, 1, steps)[0].id, kEmptyRow);
}

// Alone and in a batch, under any order of threads.
TEST(CudaSample, ARowAloneAndInABatch) {
  Random random(20);
  const size_t n = 2500;
  const auto logits = random.normals(3 * n, 2.0f);
  const std::vector<std::vector<SampleStep>> steps = {
      {{Kind::kDivide, 1.3}, {Kind::kDraw, 0.123}},
      {{Kind::kTopP, 0.99}, {Kind::kDraw, 0.77}},
      {{Kind::kTopK, 100}, {Kind::kMinP, -3.0}, {Kind::kDraw, 0.5}}};
  const auto batch = run(logits, 3, steps);
  for (size_t row = 0; row < 3; ++row) {
    emulator::set_seed(row + 77);
    const auto alone = run({logits.begin() + static_cast<int64_t>(row * n),
                            logits.begin() + static_cast<int64_t>((row + 1) * n)},
                           1, {steps[row]});
    EXPECT_EQ(alone[0].id, batch[row].id);
    EXPECT_TRUE(same_bits(alone[0].probability, batch[row].probability));
    EXPECT_EQ(alone[0].candidates, batch[row].candidates);
  }
}

TEST(CudaSample, RefusesWhatItCannotDo) {
  EXPECT_EQ(sample_rows({.vocab = 0}, 1, nullptr).code, kInvalidArguments);
  EXPECT_EQ(sample_rows({.vocab = 5}, 0, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
