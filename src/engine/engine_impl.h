// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an engine holds.
#pragma once

#include <string>

#include "engine/lone_failures.h"
#include "engine/occupant.h"
#include "engine/step_runner.h"
#include "engine/step_thread_lender.h"
#include "engine/worker_pool.h"

namespace vitrine {

struct Engine::Impl {
  Impl(const std::string& path, const EngineOptions& options, const engine::LoadRequest& request)
      : runner(path, options, request),
        occupant(runner.threads()->occupant),
        lender(occupant, runner.executor().workers()) {}

  kv::BlockPool& pool() { return runner.pool(); }
  AuditSink* sink() const { return runner.audit_sink(); }

  engine::StepRunner runner;
  engine::Occupant& occupant;  // that of the threads
  engine::StepThreadLender lender;
  engine::LoneFailures lone_failures;
};

}  // namespace vitrine
