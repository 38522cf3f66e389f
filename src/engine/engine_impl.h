// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an engine holds.
#pragma once

#include <string>

#include "engine/occupant.h"
#include "engine/step_runner.h"

namespace vitrine {

struct Engine::Impl {
  Impl(const std::string& path, const EngineOptions& options, const engine::LoadRequest& request)
      : runner(path, options, request) {}

  kv::BlockPool& pool() { return runner.pool(); }
  AuditSink* sink() const { return runner.audit_sink(); }

  engine::Occupant occupant{"an engine"};
  engine::StepRunner runner;
};

}  // namespace vitrine
