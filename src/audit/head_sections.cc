#include "head_sections.h"

namespace vitrine::audit {
namespace {

constexpr size_t kMaxPairs = 1024;
constexpr size_t kMaxSpecialists = 256;

std::vector<int32_t> get_num_terms(ByteReader& in) {
  std::vector<int32_t> counts(in.varint(kMaxSpecialists, "the number of attributions"));
  for (int32_t& count : counts) {
    count = static_cast<int32_t>(in.varint(kMaxTerms, "a specialist's number of terms"));
  }
  if (counts.empty()) throw_damaged("has terms of specialists and none of them");
  return counts;
}

}  // namespace

void put_pairs(ByteWriter& out, const std::vector<std::pair<std::string, std::string>>& pairs) {
  out.varint(pairs.size());
  for (const auto& [key, value] : pairs) {
    out.string(key);
    out.string(value);
  }
}

std::vector<std::pair<std::string, std::string>> get_pairs(ByteReader& in, const char* what) {
  std::vector<std::pair<std::string, std::string>> pairs(in.varint(kMaxPairs, what));
  for (auto& [key, value] : pairs) {
    key = in.string(kMaxText, what);
    value = in.string(kMaxText, what);
  }
  return pairs;
}

void put_sections(ByteWriter& out, const VtrHeader& header) {
  const std::vector<int32_t>& num_terms = header.federation.num_terms;
  const bool has_constraint = !header.log.constraint.empty();
  if (!num_terms.empty()) {
    out.varint(has_constraint ? 2 : 1);
    out.u8(static_cast<uint8_t>(GroupId::kAttribution));
    out.varint(num_terms.size());
    for (const int32_t count : num_terms) out.varint(static_cast<uint64_t>(count));
  }
  if (!has_constraint) return;
  out.u8(static_cast<uint8_t>(GroupId::kConstraint));
  put_pairs(out, header.log.constraint);
}

void get_sections(ByteReader& in, uint32_t version, VtrHeader& header,
                  std::vector<int32_t>& num_terms) {
  if (version < kSectionsVersion) return;
  uint64_t left = 1;
  if (version >= kCountedVersion) {
    left = in.varint(2, "the number of sections");
    const uint8_t first = in.u8();
    if (left == 0 || first != static_cast<uint8_t>(GroupId::kAttribution)) {
      throw_damaged("has no section " +
                    std::to_string(int{static_cast<uint8_t>(GroupId::kAttribution)}) +
                    " of the head in its place");
    }
    num_terms = get_num_terms(in);
    --left;
  }
  if (left == 0) return;
  const uint8_t id = in.u8();
  if (id != static_cast<uint8_t>(GroupId::kConstraint)) {
    throw_damaged("has a section " + std::to_string(id) + " of the head, which this version lacks");
  }
  header.log.constraint = get_pairs(in, "the constraint");
  if (header.log.constraint.empty()) throw_damaged("has a constraint without a word about it");
}

}  // namespace vitrine::audit
