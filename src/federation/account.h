// SPDX-License-Identifier: Apache-2.0
// The accounts of the file format's combiners: one token's parts, from what each specialist said of
// it. Their rows may be elsewhere.
#pragma once

#include <span>

#include "vitrine/federation.h"

namespace vitrine::federation {

/// `shares` [specialists] have their logprob; weight and share are filled in.
JointScore account_of_mixture(std::span<const double> weights, std::span<SpecialistShare> shares);
JointScore account_of_product(std::span<const double> weights, double log_normaliser,
                              std::span<SpecialistShare> shares);

}  // namespace vitrine::federation
