// Parts of a `.vtr`'s head: pairs of texts, and the sections of later versions.
#pragma once

#include "bytes.h"
#include "vtr_format.h"

namespace vitrine::audit {

inline constexpr size_t kMaxText = 4096;
inline constexpr size_t kMaxTerms = 65536;

void put_pairs(ByteWriter& out, const std::vector<std::pair<std::string, std::string>>& pairs);
std::vector<std::pair<std::string, std::string>> get_pairs(ByteReader& in, const char* what);

/// What a log of version 2 does not have, each named by the column group that it belongs to.
void put_sections(ByteWriter& out, const VtrHeader& header);
/// `num_terms`: of each specialist, for the federation that the head has behind the sections.
void get_sections(ByteReader& in, uint32_t version, VtrHeader& header,
                  std::vector<int32_t>& num_terms);

}  // namespace vitrine::audit
