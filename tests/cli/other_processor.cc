// SPDX-License-Identifier: Apache-2.0
// Preloaded into the command line tool: a processor of which a part is not used.
#include "vitrine/engine.h"

namespace vitrine {

std::string cpu_unused_features() { return "AVX-512 without VNNI is not used"; }

}  // namespace vitrine
