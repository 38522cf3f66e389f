// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an engine holds.
#pragma once

#include <string>

#include "engine/generate/step_thread_lender.h"
#include "engine/occupant.h"
#include "engine/run/lone_failures.h"
#include "engine/run/step_runner.h"
#include "engine/run/worker_pool.h"

namespace vitrine {

struct Engine::Impl {
  Impl(const std::string& path, const EngineOptions& options, const engine::LoadRequest& request)
      : runner(path, options, request),
        occupant(runner.threads()->occupant),
        lender(occupant, runner.executor().workers()) {}

  kv::BlockPool& pool() { return runner.pool(); }
  AuditSink* sink() const { return runner.audit_sink(); }

  engine::StepRunner runner;
  engine::Occupant& occupant;  // the threads' occupant
  engine::StepThreadLender lender;
  engine::LoneFailures lone_failures;
};

}  // namespace vitrine
