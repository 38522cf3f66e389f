// SPDX-License-Identifier: Apache-2.0
#include "serve/server_options.h"

#include <algorithm>
#include <string>

namespace vitrine::serve {

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& found,
                         const std::string& expected) {
  throw Error(ErrorKind::kInvalidArgument,
              "server option '" + name + "' is " + found + "; expected " + expected);
}

}  // namespace

ServerOptions resolve_server_options(ServerOptions options, const EngineOptions& engine) {
  if (!(options.max_wait_seconds > 0)) {
    refuse("max_wait_seconds", std::to_string(options.max_wait_seconds), "seconds above 0");
  }
  if (!(options.step_seconds >= 0)) {
    refuse("step_seconds", std::to_string(options.step_seconds), "seconds, or 0");
  }
  if (options.max_waiting < 1) {
    refuse("max_waiting", std::to_string(options.max_waiting), "1 or more");
  }
  if (options.max_unread_events < 1) {
    refuse("max_unread_events", std::to_string(options.max_unread_events), "1 or more");
  }
  // One sequence is left for the tree, which needs it for a moment where a text parts.
  const int most = std::min(std::max(engine.max_sequences - 1, 1),
                            std::min(engine.max_logit_rows, engine.max_step_tokens));
  if (options.max_running < 0 || options.max_running > most) {
    refuse("max_running", std::to_string(options.max_running),
           "at most " + std::to_string(most) +
               ", for which the engine has room (prepare_for_serving makes more)");
  }
  if (options.max_running == 0) options.max_running = most;
  if (engine.max_sequences < 2) options.cache_prefixes = false;
  return options;
}

}  // namespace vitrine::serve
