// SPDX-License-Identifier: Apache-2.0
// How a drafter's file makes it known: one registration at its end.
#pragma once

#include <memory>
#include <string_view>

#include "core/unique_name.h"
#include "vitrine/speculate.h"

namespace vitrine::speculate {

struct DrafterKind {
  std::string_view name;
  /// Options are checked already.
  std::unique_ptr<Drafter> (*make)(const DrafterOptions& options) = nullptr;
};

bool register_drafter(const DrafterKind& kind);

#define VITRINE_REGISTER_DRAFTER(name, make)                                \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(drafter_is_registered_) = \
      ::vitrine::speculate::register_drafter({name, make})

}  // namespace vitrine::speculate
