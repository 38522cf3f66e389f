// SPDX-License-Identifier: Apache-2.0
// Answers that were given up under a constraint, as a page's column and as JSON.
#pragma once

#include <functional>

#include "bytes.h"
#include "json_buffer.h"
#include "vitrine/constraint.h"

namespace vitrine::audit {

inline constexpr size_t kMaxPageFailures = 256;

/// Appends the column of these failures to `out`. Texts are cut at 1,024 bytes, readings at eight.
void encode_failures(std::span<const ConstraintFailure> failures, Bytes& out);
std::vector<ConstraintFailure> parse_failures(ByteSpan bytes);

/// Returns true where one of the failures belongs to a row that is hidden.
bool touches(std::span<const ConstraintFailure> failures,
             const std::function<bool(uint64_t, int64_t)>& hides);

/// Appends `"constraint_failures":[…],` and a line feed; nothing where there are none.
void append_failures(JsonBuffer& out, const std::vector<ConstraintFailure>& failures);

}  // namespace vitrine::audit
