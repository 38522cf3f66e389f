// SPDX-License-Identifier: Apache-2.0
// The room `gates`: two evaluations compared item by item, and held to a gate file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vitrine/evaluation.h"

namespace vitrine {

/// An item that one of two answers rightly.
struct Flip {
  std::string task = {};  ///< its task
  std::string id = {};    ///< within the task
  bool is_lost = false;   ///< the baseline alone is right; else the candidate alone
};

/// Two evaluations, item by item.
struct VITRINE_API EvaluationComparison {
  size_t num_items = 0;          ///< that both have
  size_t equal_digests = 0;      ///< of these, with the same answer to the last bit
  std::vector<Flip> flips = {};  ///< in the baseline's order
};

/// Compares two evaluations of one suite. Throws kInvalidArgument where the suites differ.
VITRINE_API EvaluationComparison compare_evaluations(const Evaluation& baseline,
                                                     const Evaluation& candidate);

}  // namespace vitrine
