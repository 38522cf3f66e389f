// SPDX-License-Identifier: Apache-2.0
#include "federation_rows.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace vitrine::audit {

namespace {

constexpr size_t kMaxName = 256;
constexpr size_t kNumbersEach = 3, kNumbersOfJoint = 3;

// There is one NaN alone, so that there is one encoding.
uint8_t* put_double(uint8_t* to, double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  std::memcpy(to, &value, sizeof(value));
  return to + sizeof(value);
}
double take_double(const uint8_t*& from) {
  double value;
  std::memcpy(&value, from, sizeof(value));
  from += sizeof(value);
  return value;
}

}  // namespace

size_t federation_bytes(const AuditLayout::Federation& federation) {
  const size_t count = federation.specialists.size();
  return count == 0 ? 0 : 1 + sizeof(double) * (kNumbersEach * count + kNumbersOfJoint);
}

void write_federation(const TokenRecord& record, size_t num_specialists, uint8_t* to) {
  const FederationRecord& federation = record.prediction.federation;
  if (federation.specialists.size() != num_specialists) return;
  *to++ = 1;
  for (const SpecialistShare& share : federation.specialists) {
    for (const double value : {share.logprob, share.weight, share.share}) {
      to = put_double(to, value);
    }
  }
  for (const double value : {federation.joint, federation.log_normaliser, federation.residual}) {
    to = put_double(to, value);
  }
}

void read_federation(const uint8_t* from, size_t num_specialists, TokenRecord& record) {
  FederationRecord& federation = record.prediction.federation;
  federation.specialists.clear();
  federation.joint = federation.log_normaliser = federation.residual = 0;
  const uint8_t flag = *from++;
  if (flag > 1) throw_damaged("a federation's row begins with " + std::to_string(flag));
  if (flag == 0) return;
  federation.specialists.resize(num_specialists);
  for (SpecialistShare& share : federation.specialists) {
    for (double* value : {&share.logprob, &share.weight, &share.share}) {
      *value = take_double(from);
    }
  }
  for (double* value : {&federation.joint, &federation.log_normaliser, &federation.residual}) {
    *value = take_double(from);
  }
}

void put_federation(ByteWriter& out, const AuditLayout::Federation& federation) {
  if (federation.specialists.empty()) return;
  out.varint(federation.specialists.size());
  for (const std::string& name : federation.specialists) {
    out.string(std::string_view(name).substr(0, kMaxName));
  }
  out.string(std::string_view(federation.combiner).substr(0, kMaxName));
  out.u8(static_cast<uint8_t>(federation.shares));
}

void get_federation(ByteReader& in, AuditLayout::Federation& federation) {
  federation = {};
  if (in.left() == 0) return;
  federation.specialists.resize(in.varint(kMaxSpecialists, "the number of specialists"));
  if (federation.specialists.empty()) throw_damaged("has a federation without specialists");
  for (std::string& name : federation.specialists) {
    name = in.string(kMaxName, "a specialist's name");
  }
  federation.combiner = in.string(kMaxName, "the combiner's name");
  federation.shares = static_cast<ShareKind>(in.u8(1, "the kind of shares"));
}

}  // namespace vitrine::audit
