// SPDX-License-Identifier: Apache-2.0
// Options of `vitrine serve` about events that tell routers of fleets which blocks it keeps.
#pragma once

#include <optional>
#include <string>

#include "common.h"
#include "vitrine/http.h"

namespace cli {

/// --kv-events and what belongs to it.
struct KvEventArguments {
  std::string endpoint, replay, topic, config, encoding = "map";
  bool is_public = false;

  void add_to(CLI::App& command);
  /// Nothing where no events were asked for. Throws kInvalidArgument for a --kv-events-config that
  /// is none.
  std::optional<vitrine::KvEventOptions> read() const;
};

}  // namespace cli
