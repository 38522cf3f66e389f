// SPDX-License-Identifier: Apache-2.0
// A server that speaks OpenAI's interface as one who answers a suite.
#pragma once

#include <memory>

#include "eval_target.h"

namespace cli {

/// Asks the server for its models. Throws kUnavailable where nobody listens.
std::unique_ptr<vitrine::EvaluationTarget> open_remote_target(const EvalTargetOptions& options);

}  // namespace cli
