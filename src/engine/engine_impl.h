// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an engine holds.
#pragma once

#include <string>

#include "engine/generate/step_thread_lender.h"
#include "engine/occupant.h"
#include "engine/run/loaded_model.h"
#include "engine/run/lone_failures.h"
#include "engine/run/partial_steps.h"
#include "engine/run/step_runner.h"
#include "engine/run/worker_pool.h"

namespace vitrine {

struct Engine::Impl {
  Impl(const std::string& path, const EngineOptions& options, const engine::LoadRequest& request)
      : model(path, options, request),
        runner(model),
        partial_steps(model, runner),
        occupant(model.threads->occupant),
        lender(occupant, model.executor->workers()) {}

  AuditSink* sink() { return runner.recorder().sink(); }

  engine::LoadedModel model;
  engine::StepRunner runner;
  engine::PartialSteps partial_steps;
  engine::Occupant& occupant;  // the threads' occupant
  engine::StepThreadLender lender;
  engine::LoneFailures lone_failures;
};

}  // namespace vitrine
