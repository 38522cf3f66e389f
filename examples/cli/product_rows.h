// SPDX-License-Identifier: Apache-2.0
// What the fit of a product reads: every specialist's whole row for tokens of the texts.
#pragma once

#include <cstdint>

#include "federate.h"

namespace cli {

struct ProductRows {
  vitrine::ProductFitData train, held_out;
  size_t every = 1;  ///< one window in so many was scored
};

/// Scores as many windows, spread evenly over the texts, as have their rows in `memory_bytes`; of
/// them the share `held_out` is held out. Refuses texts that are too short for both.
ProductRows score_product_rows(const vitrine::FederationSpec& spec, const ScoredTexts& texts,
                               const DeviceOptions& device, int window, double held_out,
                               uint64_t memory_bytes);

}  // namespace cli
