// SPDX-License-Identifier: Apache-2.0
// The step that most likely follows, to which each sequence brings the token that is being chosen
// for it.
#pragma once

#include <span>
#include <vector>

#include "engine/run/executor.h"
#include "engine/run/step_rows.h"
#include "kv/block_pool.h"

namespace vitrine::engine {

/// Not thread-safe.
class NextStep {
 public:
  NextStep(int64_t vocab_size, int64_t max_context)
      : vocab_size_(vocab_size), max_context_(max_context) {}
  void reserve(size_t rows);

  /// Returns whether what an input's sequence brings next is a token that a device chooses, by
  /// steps that are known before it is.
  static bool is_led_on(const StepInput& input);

  /// Returns what follows `batch`, whose inputs' tokens the pool's sequences have, or null where
  /// they do not all go on, or not in a way that is known by now. It is valid until the next call.
  /// The pool's blocks are named, not taken.
  const StepBatch* make(std::span<const StepInput> inputs, const StepRows& rows,
                        const StepBatch& batch, const kv::BlockPool& pool,
                        const Executor& executor);

 private:
  // `choice` is the one of the step's choices that the input goes on with.
  bool add(const StepInput& input, int32_t choice, int32_t adapter, const kv::BlockPool& pool);

  int64_t vocab_size_, max_context_;
  size_t new_blocks_ = 0;  // of the step that is being made
  StepBatch batch_;
  std::vector<DeviceSamplerSteps> steps_;  // [rows]
};

}  // namespace vitrine::engine
