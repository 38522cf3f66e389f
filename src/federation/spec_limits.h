// SPDX-License-Identifier: Apache-2.0
// What a federation's file and a spec that a host made are both held to.
#pragma once

#include <cstddef>

namespace vitrine::federation {

inline constexpr size_t kMinSpecialists = 2, kMaxSpecialists = 64;
/// The largest magnitudes of a product's weights, and of a gate's weights and biases.
inline constexpr double kLargestExponent = 100, kLargestGateWeight = 1e6;
/// How far from one a mixture's weights may sum.
inline constexpr double kSumTolerance = 1e-6;

}  // namespace vitrine::federation
