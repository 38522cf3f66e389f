// SPDX-License-Identifier: Apache-2.0
#include "head_sections.h"

#include <algorithm>
#include <set>

#include "federation_rows.h"

namespace vitrine {

bool is_trace_id(std::string_view id) {
  return id.size() == 32 && id.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         id.find_first_not_of('0') != std::string_view::npos;
}

namespace audit {
namespace {

constexpr size_t kMaxPairs = 1024;
constexpr size_t kMaxRecipients = 256;
constexpr size_t kMaxValue = size_t{1} << 20;  // thousands of biases, or of banned ids

std::vector<int32_t> get_num_terms(ByteReader& in) {
  std::vector<int32_t> counts(in.varint(kMaxSpecialists, "the number of attributions"));
  for (int32_t& count : counts) {
    count = static_cast<int32_t>(in.varint(kMaxTerms, "a specialist's number of terms"));
  }
  if (counts.empty()) throw_damaged("has terms of specialists and none of them");
  return counts;
}

// A layer's byte: its router's kind, and whether the log has what it chose by, and the norms of
// what its experts gave.
constexpr uint8_t kHasScores = 4, kHasNorms = 8;

bool has_routers(const VtrHeader& header) {
  return std::ranges::any_of(header.layers, [](const AuditLayout::Layer& layer) {
    return layer.router != RouterKind::kPlain || layer.expert_norms >= 0;
  });
}

void put_routers(ByteWriter& out, const std::vector<AuditLayout::Layer>& layers) {
  out.varint(layers.size());
  for (const AuditLayout::Layer& layer : layers) {
    out.u8(static_cast<uint8_t>(static_cast<uint8_t>(layer.router) |
                                (layer.router_scores >= 0 ? kHasScores : 0) |
                                (layer.expert_norms >= 0 ? kHasNorms : 0)));
  }
}

void get_routers(ByteReader& in, VtrHeader& header) {
  const uint64_t count = in.varint(header.layers.size(), "the number of routers");
  if (count != header.layers.size()) {
    throw_damaged("has routers of " + std::to_string(count) + " layers, expected " +
                  std::to_string(header.layers.size()));
  }
  for (AuditLayout::Layer& layer : header.layers) {
    const uint8_t byte = in.u8();
    const uint8_t kind = byte & 3;
    const bool has_scores = (byte & kHasScores) != 0;
    const bool is_dense = layer.top_k == 0;
    const bool is_plain = kind == static_cast<uint8_t>(RouterKind::kPlain);
    if (byte > 15 || kind > static_cast<uint8_t>(RouterKind::kSigmoidScores) ||
        (is_dense && byte != 0) || (is_plain && has_scores)) {
      throw_damaged("layer " + std::to_string(layer.layer) + " has a router of kind " +
                    std::to_string(byte) +
                    ", expected 0, 1, 2, 5 or 6, with norms 8 more, and 0 of a dense layer");
    }
    layer.router = static_cast<RouterKind>(kind);
    if (has_scores) layer.router_scores = 0;
    if ((byte & kHasNorms) != 0) layer.expert_norms = 0;
  }
  if (!has_routers(header)) throw_damaged("has a section of routers and none of them");
}

}  // namespace

void check_trace_id(const std::string& id, const char* what) {
  if (id.empty() || is_trace_id(id)) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string(what) + ": option 'trace_id' is '" + id.substr(0, 64) +
                  (id.size() > 64 ? "…" : "") +
                  "'; expected 32 hexadecimal digits in lower case, not all 0 (W3C Trace Context)");
}

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
    value = in.string(kMaxValue, what);
  }
  return pairs;
}

void put_sections(ByteWriter& out, const VtrHeader& header) {
  const std::vector<int32_t>& num_terms = header.federation.num_terms;
  const bool has_constraint = !header.log.constraint.empty();
  const bool names_routers = has_routers(header);
  const bool has_drafter = !header.log.speculation.empty();
  out.varint((num_terms.empty() ? 0U : 1U) + (has_constraint ? 1U : 0U) +
             (names_routers ? 1U : 0U) + (has_drafter ? 1U : 0U));
  if (!num_terms.empty()) {
    out.u8(static_cast<uint8_t>(GroupId::kAttribution));
    out.varint(num_terms.size());
    for (const int32_t count : num_terms) out.varint(static_cast<uint64_t>(count));
  }
  if (has_constraint) {
    out.u8(static_cast<uint8_t>(GroupId::kConstraint));
    put_pairs(out, header.log.constraint);
  }
  if (names_routers) {
    out.u8(static_cast<uint8_t>(GroupId::kSelection));
    put_routers(out, header.layers);
  }
  if (has_drafter) {
    out.u8(static_cast<uint8_t>(GroupId::kDrafts));
    put_pairs(out, header.log.speculation);
  }
}

void get_sections(ByteReader& in, VtrHeader& header, std::vector<int32_t>& num_terms) {
  int before = -1;
  for (uint64_t left = in.varint(4, "the number of sections"); left > 0; --left) {
    const uint8_t id = in.u8();
    if (int{id} <= before) throw_damaged("has sections of the head that are not in order");
    before = id;
    if (id == static_cast<uint8_t>(GroupId::kAttribution)) {
      num_terms = get_num_terms(in);
    } else if (id == static_cast<uint8_t>(GroupId::kConstraint)) {
      header.log.constraint = get_pairs(in, "the constraint");
      if (header.log.constraint.empty()) throw_damaged("has a constraint without a word about it");
    } else if (id == static_cast<uint8_t>(GroupId::kSelection)) {
      get_routers(in, header);
    } else if (id == static_cast<uint8_t>(GroupId::kDrafts)) {
      header.log.speculation = get_pairs(in, "the drafter");
      if (header.log.speculation.empty()) throw_damaged("has a drafter without a word about it");
    } else {
      throw_damaged("has a section " + std::to_string(id) +
                    " of the head, which this version lacks");
    }
  }
}

void put_sealed_keys(ByteWriter& out, const std::vector<VtrSealedKeys>& keys) {
  out.varint(keys.size());
  for (const VtrSealedKeys& of : keys) {
    out.raw(of.recipient);
    out.varint(of.boxes.size());
    for (const VtrSealedKeys::Box& box : of.boxes) {
      out.u8(box.group);
      out.raw(box.sealed);
    }
  }
}

std::vector<VtrSealedKeys> get_sealed_keys(ByteReader& in) {
  std::vector<VtrSealedKeys> keys(in.varint(kMaxRecipients, "the number of recipients"));
  for (VtrSealedKeys& of : keys) {
    of.recipient = in.array<32>();
    of.boxes.resize(in.varint(256, "a recipient's number of keys"));
    int previous = -1;
    for (VtrSealedKeys::Box& box : of.boxes) {
      box.group = in.u8();
      if (box.group <= previous) throw_damaged("has a recipient's keys out of order");
      previous = box.group;
      box.sealed = in.array<80>();
    }
  }
  return keys;
}

void check_recipients(const std::vector<VtrSealedKeys>& keys,
                      const std::vector<GroupSpec>& groups) {
  if (keys.empty()) return;
  std::set<uint8_t> encrypted, opened;
  for (const GroupSpec& group : groups) {
    if (group.id == GroupId::kIndex || group.id == GroupId::kEvents) continue;
    encrypted.insert(static_cast<uint8_t>(group.id));
  }
  std::set<PublicKey> recipients;
  for (const VtrSealedKeys& of : keys) {
    if (!recipients.insert(of.recipient).second) throw_damaged("names a recipient twice");
    if (of.recipient == PublicKey{}) throw_damaged("names a recipient without a key");
    if (of.boxes.empty()) throw_damaged("names a recipient who can open nothing");
    for (const VtrSealedKeys::Box& box : of.boxes) {
      if (!encrypted.contains(box.group)) {
        throw_damaged("has a recipient's key for column group " + std::to_string(box.group) +
                      ", which is not encrypted");
      }
      opened.insert(box.group);
    }
  }
  if (opened != encrypted) throw_damaged("has column groups that no recipient can open");
}

}  // namespace audit
}  // namespace vitrine
