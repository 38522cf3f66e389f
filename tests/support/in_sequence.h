// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "vitrine/generate.h"

namespace vitrine::testing {

/// Options of an answer that goes on in a sequence that stays.
inline GenerateOptions in_sequence(SequenceId sequence, GenerateOptions options) {
  options.sequence = sequence;
  return options;
}

}  // namespace vitrine::testing
