// SPDX-License-Identifier: Apache-2.0
// Where a constraint stood when it failed, for people and as JSON.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common.h"

namespace cli {

/// What is left of an answer to say in a constraint's state, as lines that begin with `indent`.
std::string state_text(const vitrine::ConstraintState& state, const std::string& indent);
/// A line, and state_text() below it. `quoted` turns an id into text.
std::string failure_text(const vitrine::ConstraintFailure& failure,
                         const std::function<std::string(int32_t)>& quoted);
/// As a log has it.
nlohmann::ordered_json failure_json(const vitrine::ConstraintFailure& failure);

/// Notes on why an answer failed, to standard error.
void write_failures(const std::vector<vitrine::ConstraintFailure>& failures,
                    const vitrine::Tokenizer& tokenizer);

}  // namespace cli
