// SPDX-License-Identifier: Apache-2.0
// Bounds on numbers, against arithmetic on exact fractions.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/constrain/number_bound.h"
#include "src/constrain/regex_pool.h"

namespace vitrine::constrain {
namespace {

/// A decimal with at most four digits behind the point, in ten-thousandths.
int64_t scaled(const Decimal& value) {
  const std::string fraction = (value.fraction + "0000").substr(0, 4);
  const int64_t magnitude = std::stoll(value.integer) * 10000 + std::stoll(fraction);
  return value.negative ? -magnitude : magnitude;
}

TEST(Decimal, ReadsJsonNumbers) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},          {"-0", "0"},        {"-0.0", "0"},  {"12.50", "12.5"}, {"1e3", "1000"},
      {"1.5e-2", "0.015"}, {"-2.5E+1", "-25"}, {"0.1e1", "1"}, {"100e-2", "1"}};
  for (const auto& [text, expected] : cases) {
    const auto value = parse_decimal(text);
    ASSERT_TRUE(value) << text;
    EXPECT_EQ(value->text(), expected);
  }
  for (const char* text : {"", "-", "1.", ".5", "1e", "1e+", "1x", "1e99999"}) {
    EXPECT_FALSE(parse_decimal(text)) << text;
  }
}

TEST(NumberBound, AgreesWithArithmetic) {
  const std::vector<std::string> numbers = {
      "0",    "-0",    "0.0",     "1",     "-1",     "9",      "10",   "11",  "99",
      "100",  "101",   "-10",     "0.5",   "-0.5",   "0.05",   "1.50", "1.5", "1.49",
      "1.51", "12.34", "12.3400", "12.35", "-12.34", "-12.35", "7.25"};
  RegexPool pool;
  int checked = 0;
  for (const std::string& limit : numbers) {
    for (auto op : {NumberBound::kAtLeast, NumberBound::kAbove, NumberBound::kAtMost,
                    NumberBound::kBelow, NumberBound::kEqual}) {
      NumberBound bound;
      bound.op = op;
      bound.value = *parse_decimal(limit);
      const NodeId node = pool.all_of(pool.number(), pool.number_bound(bound));
      for (const std::string& number : numbers) {
        const int64_t x = scaled(*parse_decimal(number)), y = scaled(bound.value);
        const bool expected = op == NumberBound::kAtLeast  ? x >= y
                              : op == NumberBound::kAbove  ? x > y
                              : op == NumberBound::kAtMost ? x <= y
                              : op == NumberBound::kBelow  ? x < y
                                                           : x == y;
        EXPECT_EQ(pool.matches(node, number), expected) << number << " op " << op << " " << limit;
        ++checked;
      }
    }
  }
  for (const char* step : {"1", "2", "7", "0.5", "0.01", "1.5", "25"}) {
    const auto bound = multiple_of(*parse_decimal(step));
    ASSERT_TRUE(bound) << step;
    const NodeId node = pool.all_of(pool.number(), pool.number_bound(*bound));
    for (const std::string& number : numbers) {
      const bool expected = scaled(*parse_decimal(number)) % scaled(*parse_decimal(step)) == 0;
      EXPECT_EQ(pool.matches(node, number), expected) << number << " by " << step;
      ++checked;
    }
  }
  EXPECT_GT(checked, 3000);
}

TEST(NumberBound, RefusesStepsItCannotCount) {
  EXPECT_FALSE(multiple_of(*parse_decimal("0")));
  EXPECT_FALSE(multiple_of(*parse_decimal("12345678901")));
  EXPECT_TRUE(multiple_of(*parse_decimal("0.00000001")));
}

}  // namespace
}  // namespace vitrine::constrain
