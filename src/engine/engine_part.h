// SPDX-License-Identifier: Apache-2.0
// An engine that works for something larger: how a federation loads those that run its specialists.
#pragma once

#include <memory>
#include <string>

#include "engine/device_joint.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// What is said of such an engine beside its options.
struct PartOptions {
  /// False: records say nothing of rows of logits (AuditLayout::row_words is 0), and nothing is
  /// computed for them: a federation records its joint's rows instead. Not with attribution.
  bool record_rows = true;
  /// Its steps may, on CUDA's fused path, be of a federation's joint, made and chosen on the
  /// device: the outputs of such a step have no tokens and no logits. Null: an engine as others
  /// are.
  const DeviceJointSpec* joint = nullptr;
};

struct PartLoader {
  /// Engine::load of a part.
  static std::unique_ptr<Engine> load(const std::string& path, const EngineOptions& options,
                                      const PartOptions& part);
};

}  // namespace vitrine::engine
