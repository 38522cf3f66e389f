// SPDX-License-Identifier: Apache-2.0
// Private to the library: the functions that tests and intervals are made of.
#pragma once

#include <cstddef>

namespace vitrine::quality {

/// The regularized incomplete beta function I_x(a, b), a and b above 0, x from 0 to 1 (DLMF 8.17).
double incomplete_beta(double a, double b, double x);
/// The x of which it is `value` (0 to 1).
double inverse_incomplete_beta(double a, double b, double value);
/// How probable a Student's t above `t` is.
double student_above(double t, double degrees_of_freedom);
/// Throws kInvalidArgument unless 0 < value < 1; `what` names it.
void require_probability(const char* what, double value);
/// Throws kInvalidArgument unless both are equal: how many there are of `what` on two sides.
void require_pairs(const char* what, size_t first, size_t second);

}  // namespace vitrine::quality
