// SPDX-License-Identifier: Apache-2.0
// How a federation, a drafter and who stores prefixes reach what their engines own.
#pragma once

#include <memory>
#include <string>

#include "vitrine/engine.h"

namespace vitrine::engine {

class Occupant;
class PartialSteps;
class StepRunner;
struct LoadedModel;
struct LoadRequest;

struct EngineAccess {
  static std::unique_ptr<Engine> load(const std::string& path, const EngineOptions& options,
                                      const LoadRequest& request);
  static LoadedModel& model(Engine& engine);
  static Occupant& occupant(Engine& engine);
  static StepRunner& runner(Engine& engine);
  static PartialSteps& partial_steps(Engine& engine);
};

}  // namespace vitrine::engine
