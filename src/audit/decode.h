// SPDX-License-Identifier: Apache-2.0
// Turns a pass's bytes into structs, without allocating for shapes seen before.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "vitrine/audit.h"

namespace vitrine::audit {

/// Throws kBadFile where an offset or a count of the layout is impossible.
void check_layout(const AuditLayout& layout);

/// Returns true where `federation` divides all of a layout's or log's `num_terms` terms among its
/// specialists; without terms or specialists, where it does not divide any.
bool is_split(const AuditLayout::Federation& federation, size_t num_terms);

bool same_layout(const AuditLayout& a, const AuditLayout& b);

/// Decodes a pass as decode_pass() does, into the first records of `pool`, which grows and never
/// shrinks, so that its vectors are used again. Returns how many records there are. `layout` must
/// have passed check_layout().
size_t decode_pass_into(const AuditLayout& layout, std::span<const std::byte> record,
                        std::vector<TokenRecord>& pool);

}  // namespace vitrine::audit
