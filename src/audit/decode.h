// SPDX-License-Identifier: Apache-2.0
// From a pass's bytes to structs, without allocating for shapes seen before.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "vitrine/audit.h"

namespace vitrine::audit {

/// Throws kBadFile where an offset or a count of the layout is impossible.
void check_layout(const AuditLayout& layout);

/// False where the terms of a layout or a log are not each one specialist's.
bool is_split(const AuditLayout::Federation& federation, size_t num_terms);

bool same_layout(const AuditLayout& a, const AuditLayout& b);

/// decode_pass() into the first records of `pool`, which grows and never shrinks, so that its
/// vectors are used again. Returns how many there are. `layout` must have passed check_layout().
size_t decode_pass_into(const AuditLayout& layout, std::span<const std::byte> record,
                        std::vector<TokenRecord>& pool);

}  // namespace vitrine::audit
