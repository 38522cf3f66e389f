// SPDX-License-Identifier: Apache-2.0
// Masks that stand before a step is made, so that a device can choose under them.
#pragma once

#include "vitrine/engine.h"

namespace vitrine::engine {

/// A guide whose masks hang on no choice of the step: they may be asked for before it, of every
/// row, and stay as they are until it is over. It is told of no choice.
class KnownMasks : public ChoiceGuide {};

}  // namespace vitrine::engine
