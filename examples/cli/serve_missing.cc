// SPDX-License-Identifier: Apache-2.0
// A build without libvitrine_http.so.
#include "serve.h"

namespace cli {

int run_serve(const ServeArguments& /*arguments*/) {
  throw vitrine::Error(vitrine::ErrorKind::kUnavailable,
                       "this build has no HTTP server; expected one of `scripts/build all`, which "
                       "fetches Boost's headers");
}

}  // namespace cli
