// SPDX-License-Identifier: Apache-2.0
// Gate weights count by their share of the layer's sum, which a router with scores may scale.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/audit/vtr_fixture.h"
#include "tests/checkpoint/folders.h"
#include "vitrine/ledger.h"

namespace vitrine {
namespace {

using namespace audit_test;

/// What an expert is owed of a token, by hand: its weight over the sum, each layer alike.
void add_expected(const TokenRecord& record, std::map<Contributor, double>& expected) {
  std::map<Contributor, double> token;
  double all = 0;
  for (const LayerRecord& layer : record.layers) {
    double sum = 0;
    for (const RouteRecord& route : layer.routes) sum += std::max(0.0, double{route.weight});
    for (const RouteRecord& route : layer.routes) {
      if (sum == 0) continue;
      const double share = std::max(0.0, double{route.weight}) / sum;
      token[{"", layer.layer, route.expert}] += share;
      all += share;
    }
  }
  for (const auto& [contributor, share] : token) expected[contributor] += share / all;
}

TEST(LedgerGateWeights, AreDividedByTheirSumWhateverItIs) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "run.vtr";
  Rng rng(4);
  const AuditLayout layout =
      make_layout({{2, 5, RouterKind::kSigmoidScores}, {0, 0}, {3, 7}}, AuditLevel::kFull, rng);
  VtrOptions options;
  options.detail = LogDetail::kFull;
  std::map<Contributor, double> expected;
  int scaled = 0, generated = 0;
  for (const TokenRecord& record : write_log(path, layout, 200, options)) {
    if (!record.has_prediction || !record.prediction.generated) continue;
    ++generated;
    const auto& routes = record.layers[0].routes;
    scaled += std::abs(routes[0].weight + routes[1].weight - 1) > 0.01F ? 1 : 0;
    add_expected(record, expected);
  }
  EXPECT_GT(scaled, 40);
  const RunAccount run = read_run_account(path);
  ASSERT_EQ(run.tokens_out, generated);
  for (const auto& [contributor, share] : expected) {
    const auto& shares = run.shares.at(ShareBasis::kGateWeight);
    const auto found = shares.find(contributor);
    const double units = found == shares.end() ? 0 : static_cast<double>(found->second);
    EXPECT_NEAR(units, share * static_cast<double>(kShareUnits), 2.0 * generated)
        << contributor.layer << ":" << contributor.expert;
  }
}

}  // namespace
}  // namespace vitrine
