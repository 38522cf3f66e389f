// SPDX-License-Identifier: Apache-2.0
#include "remote_target.h"
namespace cli {
std::unique_ptr<vitrine::EvaluationTarget> open_remote_target(const EvalTargetOptions& options) {
  refuse(options.model + ": not yet");
}
}  // namespace cli
