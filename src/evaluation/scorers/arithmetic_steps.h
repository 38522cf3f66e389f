// SPDX-License-Identifier: Apache-2.0
// Private to the library: numbers and sums that a text writes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::evaluation {

/// A number as a text writes it.
struct WrittenNumber {
  double value = 0;
  int decimals = 0;  // digits behind its point
  size_t begin = 0, end = 0;
};

/// Reads the number at `at`: digits, groups of three behind commas, a point and digits; nothing
/// where none begins there. Signs are the caller's.
std::optional<WrittenNumber> read_number(std::string_view text, size_t at);

/// The last number of a text, with its sign; a minus between two numbers ("5-3") is none.
std::optional<WrittenNumber> last_number(std::string_view text);
/// The first one.
std::optional<WrittenNumber> first_number(std::string_view text);

/// A sum that a text writes out: "12 × 3 + 4 = 40".
struct ArithmeticStep {
  std::string text;
  double stated = 0;      // behind the equals sign
  bool is_right = false;  // it is what the left side gives, rounded as it is written
};

/// All sums of a text: at least two numbers with + - − * × x · ÷ / between them, and an equals sign
/// with a number behind. Products and quotients go before sums; a chain ("2 + 3 = 5 + 1 = 6") is a
/// step for each equals sign whose left side has an operator; money and percent signs are passed
/// over.
std::vector<ArithmeticStep> arithmetic_steps(std::string_view text);

}  // namespace vitrine::evaluation
