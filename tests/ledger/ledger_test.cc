// SPDX-License-Identifier: Apache-2.0
// Rounding that loses nothing, and rates from hostile files.
#include "vitrine/ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "src/ledger/rounding.h"
#include "tests/checkpoint/folders.h"
#include "tests/ledger/runs.h"

namespace vitrine::testing {
namespace {

using ledger::round_together;
using ledger::share_units;
using ledger::Wide;

int64_t sum_of(const Booking& booking) {
  int64_t sum = 0;
  for (const LedgerLine& line : booking.lines) sum += line.micro;
  return sum;
}

TEST(LedgerRounding, SumsAreTheRoundedSum) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const size_t count = 1 + random() % 9;
    const Wide denominator = 1 + static_cast<Wide>(random() % 1'000'000'007);
    std::vector<Wide> numerators;
    Wide sum = 0;
    for (size_t i = 0; i < count; ++i) {
      numerators.push_back(static_cast<Wide>(random() % (uint64_t{1} << (random() % 62))));
      sum += numerators.back();
    }
    const std::vector<int64_t> amounts = round_together(numerators, denominator);
    Wide total = 0;
    for (size_t i = 0; i < count; ++i) {
      total += amounts[i];
      const Wide down = numerators[i] / denominator;
      EXPECT_TRUE(amounts[i] == down || amounts[i] == down + 1);
    }
    EXPECT_TRUE(total == (2 * sum + denominator) / (2 * denominator));
  }
  EXPECT_TRUE(round_together({}, 3).empty());
  const std::vector<Wide> thirds = {1, 1, 1};
  EXPECT_EQ(round_together(thirds, 3), (std::vector<int64_t>{1, 0, 0}));  // ties to the first
}

TEST(LedgerRounding, ATokensUnitsAreAllGiven) {
  std::mt19937_64 random(8);
  std::exponential_distribution<double> weight(1.0);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<double> weights(1 + random() % 40);
    for (double& one : weights) one = weight(random) * std::pow(10.0, int(random() % 40) - 30);
    const std::vector<int64_t> units = share_units(weights);
    EXPECT_EQ(std::accumulate(units.begin(), units.end(), int64_t{0}), kShareUnits);
    EXPECT_GE(*std::min_element(units.begin(), units.end()), 0);
  }
  const std::vector<double> nothing = {0, 0};
  EXPECT_EQ(share_units(nothing), (std::vector<int64_t>{0, 0}));
}

TEST(LedgerRates, BookLinesThatSumToZero) {
  const LedgerRates rates = LedgerRates::parse(
      head(R"("settlement":{"token_in":2,"token_out":10,"mebibyte":9,"second":1000},
              "basis":"gate_weight","royalties":[)" +
           group("[0,0]", "[0,0]") + "," + group("[0,3]", "[1,1]") + "]"),
      "rates.json");
  const Booking settlement = rates.book(BookingKind::kSettlement, a_run());
  // 14 + 30 + 4.5 + 1500.001 = 1548.501
  ASSERT_EQ(settlement.lines.size(), 5u);
  EXPECT_EQ(settlement.lines[0], (LedgerLine{"host", -1549, "settlement"}));
  EXPECT_EQ(settlement.lines[3].micro, 5);
  EXPECT_EQ(settlement.lines[4].micro, 1500);
  EXPECT_EQ(sum_of(settlement), 0);
  const Booking royalties = rates.book(BookingKind::kRoyalties, a_run());
  EXPECT_EQ(sum_of(royalties), 0);
  EXPECT_EQ(royalties.lines[0].micro, -15);  // 7.5 and 7.499999995
  EXPECT_EQ(royalties.lines[1].micro, 8);
  EXPECT_EQ(royalties.lines[2].memo, "g: 1.499999999 tokens");
  EXPECT_NE(royalties.lines[0].memo.find("0.000000001 tokens of nobody"), std::string::npos);
}

TEST(LedgerRates, BadFilesAreNamedWithTheirField) {
  const std::vector<std::pair<std::string, std::array<std::string, 3>>> cases = {
      {"[]", {"rates.json"}},
      {"{", {"rates.json"}},
      {R"({"currency":"","payer":"p"})", {"currency", "not empty"}},
      {R"({"currency":"EUR"})", {"payer", "missing"}},
      {R"({"currency":"EUR","payer":"p","settlement":{}})", {"server"}},
      {head(R"("settlement":{"token_in":-1})"), {"settlement.token_in", "-1", "0 to"}},
      {head(R"("settlement":{"token_in":1.5})"), {"settlement.token_in", "1.5"}},
      {head(R"("settlement":{"token_in":1000000001})"), {"settlement.token_in"}},
      {head(R"("settlement":{"token_in":18446744073709551615})"), {"settlement.token_in"}},
      {head(R"("settlement":{"tokens":1})"), {"settlement.tokens", "unknown"}},
      {head(R"("royalties":[])"), {"basis"}},
      {head(R"("basis":"luck","royalties":[])"), {"basis", "luck", "gate_weight"}},
      {by_gates(R"({"specialist":"s","account":"a","token":1})"), {"specialist", "gate_weight"}},
      {by_gates(R"({"group":"g","account":"a","experts":[{"layers":[0,1],"experts":[0,1]}]})"),
       {"token", "missing"}},
      {by_gates(group("[0,1]", "[2,1]")), {"royalties[0].experts[0].experts", "first <= last"}},
      {by_gates(group("[0]", "[1,1]")), {"layers", "[first, last]"}},
      {by_gates(group("[0,1]", "[0,3]") + "," + group("[1,2]", "[3,4]")),
       {"royalties[1]", "overlaps", "royalties[0]"}},
      {by_gates(group("[0,1]", "[0,3]", R"(,"from":"2026-02-30")")), {"from", "2026-02-30"}},
      {by_gates(group("[0,1]", "[0,3]", R"(,"from":"2026-02-03","until":"2026-02-03")")),
       {"until", "behind"}},
      {by_gates(group("[0,1]", "[0,3]", R"(,"specialist":"s")")),
       {"royalties[0].specialist", "experts"}},
      {by_gates(R"({"group":"g","account":"a","token":1})"), {"royalties[0].group", "experts"}},
      {head(R"("basis":"responsibility","royalties":[{"specialist":"s","account":"a","token":1},
               {"specialist":"s","account":"b","token":2}])"),
       {"royalties[1]", "overlaps"}},
  };
  for (const auto& [text, words] : cases) {
    const Error error = error_of([&] { LedgerRates::parse(text, "rates.json"); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << text;
    EXPECT_TRUE(is_one_line_with(error, {words[0], words[1], words[2]})) << text << "\n"
                                                                         << error.what();
  }
}

TEST(LedgerRates, ARateCountsInItsTime) {
  const auto booked = [](const std::string& rates) {
    return LedgerRates::parse(by_gates(rates), "rates.json").book(BookingKind::kRoyalties, a_run());
  };
  const std::string all = "[0,9]";
  const Booking booking = booked(group(all, all, R"(,"until":"2026-09-01")") + "," +
                                 group(all, all, R"(,"from":"2026-09-01","until":"2026-10-01")") +
                                 "," + group(all, all, R"(,"from":"2026-10-01")"));
  EXPECT_EQ(booking.lines.size(), 2u);
  const Error error = error_of([&] { booked(group(all, all, R"(,"until":"2026-09-01")")); });
  EXPECT_TRUE(is_one_line_with(error, {"no rate for expert 0 of layer 0", "run-00.vtr"}))
      << error.what();
}

}  // namespace
}  // namespace vitrine::testing
