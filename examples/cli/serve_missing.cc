// SPDX-License-Identifier: Apache-2.0
// vitrine serve, in a build without libvitrine_http.so.
#include "common.h"

namespace cli {

void add_serve(CLI::App& app, Command& command) {
  CLI::App* serve =
      app.add_subcommand("serve", "Answers HTTP requests (not in this build: see --help)");
  serve->footer(
      "This build has no HTTP server. Run scripts/build all, which fetches Boost's headers.");
  serve->allow_extras();
  serve->callback([&command] {
    command = []() -> int {
      throw vitrine::Error(
          vitrine::ErrorKind::kUnavailable,
          "this build has no HTTP server; expected one of `scripts/build all`, which "
          "fetches Boost's headers");
    };
  });
}

}  // namespace cli
