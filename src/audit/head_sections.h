// SPDX-License-Identifier: Apache-2.0
// Parts of a `.vtr`'s head: pairs of texts, and the sections that only some logs have.
#pragma once

#include "bytes.h"
#include "vtr_format.h"

namespace vitrine::audit {

inline constexpr size_t kMaxText = 4096;
inline constexpr size_t kMaxTerms = 65536;

void put_pairs(ByteWriter& out, const std::vector<std::pair<std::string, std::string>>& pairs);
std::vector<std::pair<std::string, std::string>> get_pairs(ByteReader& in, const char* what);

/// Puts the sections that only some logs have, each named by the column group that it belongs to.
void put_sections(ByteWriter& out, const VtrHeader& header);
/// Gets the sections. `num_terms` gets the terms of each specialist, for the federation that the
/// head has behind the sections.
void get_sections(ByteReader& in, VtrHeader& header, std::vector<int32_t>& num_terms);

/// Throws kInvalidArgument unless `id` is empty or the id of a trace as W3C's Trace Context has it.
/// `what` names the option in the message.
void check_trace_id(const std::string& id, const char* what);

/// Puts the keys of column groups, sealed for each recipient.
void put_sealed_keys(ByteWriter& out, const std::vector<VtrSealedKeys>& keys);
std::vector<VtrSealedKeys> get_sealed_keys(ByteReader& in);
/// Throws unless each column group that is encrypted has a reader, and no other group has one.
void check_recipients(const std::vector<VtrSealedKeys>& keys, const std::vector<GroupSpec>& groups);

}  // namespace vitrine::audit
