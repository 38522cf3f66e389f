// SPDX-License-Identifier: Apache-2.0
// A model of a server's, with all that is its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/prepare.h"
#include "serve/scheduler.h"
#include "vitrine/serve.h"

namespace vitrine::serve {

/// A model with what decides its steps and what reads its requests. Its counts are under the
/// server's lock.
struct ServedModel {
  /// Throws what Scheduler does.
  ServedModel(NamedModel named, const ServerOptions& options, Scheduler::Clock clock);
  /// Whether requests may call it so.
  bool answers(std::string_view asked) const;
  /// Returns what it has done.
  ServerTelemetry telemetry() const;

  std::string name;
  std::vector<std::string> adapters;
  ServerTelemetry requests;  ///< what the server counts, until the scheduler has gone
  ServerTelemetry steps;     ///< what the scheduler had counted after its last step
  Model model;
  Scheduler scheduler;
  RequestPreparer preparer;
};

/// Adds what another model, or another part of the server, counted.
void add_counts(ServerTelemetry& all, const ServerTelemetry& one);

}  // namespace vitrine::serve
