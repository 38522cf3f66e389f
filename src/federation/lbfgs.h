// SPDX-License-Identifier: Apache-2.0
// Minimisation of a smooth function by L-BFGS (Liu and Nocedal 1989) with a backtracking line
// search.
#pragma once

#include <functional>
#include <vector>

namespace vitrine::federation {

/// Value at a point; writes the gradient there.
using Objective = std::function<double(const std::vector<double>&, std::vector<double>& gradient)>;

/// Moves `point` downhill until a step gains less than `tolerance` or `max_iterations` are done.
/// Returns the value there.
double minimize(const Objective& objective, std::vector<double>& point, int max_iterations,
                double tolerance);

}  // namespace vitrine::federation
