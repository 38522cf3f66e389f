// SPDX-License-Identifier: Apache-2.0
// Masks that are known before a step is made, so that a device can choose under them.
#pragma once

#include "vitrine/engine.h"

namespace vitrine::engine {

/// A guide whose masks may hang on no choice of the step.
class KnownMasks : public ChoiceGuide {
 public:
  /// Returns whether they hang on none. Then they may be asked for before the step, of every row in
  /// order, and stay as they are until it is over, and the guide is told of no choice.
  virtual bool has_known_masks() const = 0;
};

}  // namespace vitrine::engine
