// SPDX-License-Identifier: Apache-2.0
// The threads of an engine's or a federation's steps, lent where no step is under way.
#pragma once

#include "core/piece_work.h"
#include "engine/occupant.h"
#include "vitrine/step.h"

namespace vitrine::engine {

class StepThreadLender final : public ThreadLender {
 public:
  /// `threads`: null where there are none to lend. Both must stay.
  StepThreadLender(Occupant& occupant, core::PieceThreads* threads)
      : occupant_(occupant), threads_(threads) {}
  core::PieceThreads* borrow() override {
    return threads_ != nullptr && occupant_.enter_if_free() ? threads_ : nullptr;
  }
  void give_back() override { occupant_.leave_soon(); }
  bool has_threads() const { return threads_ != nullptr; }

 private:
  Occupant& occupant_;
  core::PieceThreads* threads_;
};

}  // namespace vitrine::engine
