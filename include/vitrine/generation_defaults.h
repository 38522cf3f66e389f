// SPDX-License-Identifier: Apache-2.0
// The room `checkpoint`: how a model's publisher expects it to be sampled.
#pragma once

#include <cstdint>
#include <optional>

#include "vitrine/checkpoint.h"

namespace vitrine {

/// What generation_config.json says about sampling (Hugging Face's fields of these names; a GGUF
/// file's `general.sampling.temp`, `.top_k` and `.top_p`), each only where it is there.
struct GenerationDefaults {
  std::optional<double> temperature;  ///< 0: greedy
  std::optional<int32_t> top_k;       ///< tokens; 0: off
  std::optional<double> top_p;        ///< above 0, at most 1 (off)

  /// Returns true where nothing is said.
  bool is_empty() const { return !temperature && !top_k && !top_p; }
};

/// Those of a checkpoint; thread-safe. Throws kBadFile with the file, the field and what was
/// expected for a value that is none (a temperature below 0 or above 100, a top_k below -1, which
/// is read as 0, a top_p beyond 0 to 1).
VITRINE_API GenerationDefaults generation_defaults(const Checkpoint& checkpoint);

}  // namespace vitrine
