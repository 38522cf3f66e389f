// SPDX-License-Identifier: Apache-2.0
#include "failure_list.h"

#include <algorithm>
#include <limits>

#include "core/utf8.h"

namespace vitrine::audit {
namespace {

using Kind = ConstraintFailure::Kind;

constexpr size_t kMaxReadings = 8;
constexpr size_t kMaxFailureText = 1024;  // so that a full page stays below kMaxPageBytes
constexpr uint64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr uint64_t kMaxCount = std::numeric_limits<int64_t>::max();

uint64_t count_of(int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(value, 0)); }

/// Returns as much of a text as a log keeps, up to a whole character.
std::string_view kept(std::string_view text) {
  if (text.size() <= kMaxFailureText) return text;
  size_t end = kMaxFailureText;
  while (end > kMaxFailureText - 4 && is_continuation(text[end])) --end;
  return text.substr(0, end);
}

void put_text(ByteWriter& out, const std::string& text) { out.string(kept(text)); }

std::string get_text(ByteReader& in) { return in.string(kMaxFailureText, "a failure's text"); }

int32_t get_id(ByteReader& in, const char* what) {
  return static_cast<int32_t>(in.varint(kMaxId, what));
}

}  // namespace

void encode_failures(std::span<const ConstraintFailure> failures, Bytes& out) {
  ByteWriter writer(out);
  writer.varint(failures.size());
  for (const ConstraintFailure& failure : failures) {
    const ConstraintState& state = failure.state;
    writer.u8(static_cast<uint8_t>(failure.kind));
    writer.varint(count_of(failure.attempt));
    writer.varint(failure.sequence);
    writer.varint(count_of(failure.position));
    writer.varint(count_of(int64_t{failure.token} + 1));
    writer.varint(count_of(failure.allowed));
    writer.varint(count_of(failure.in_time));
    put_text(writer, failure.message);
    writer.varint(count_of(state.num_bytes));
    writer.varint(count_of(state.num_readings));
    const size_t readings = std::min(state.readings.size(), kMaxReadings);
    writer.varint(readings);
    for (size_t i = 0; i < readings; ++i) put_text(writer, state.readings[i]);
    put_text(writer, state.next_bytes);
    put_text(writer, state.completion);
  }
}

std::vector<ConstraintFailure> parse_failures(ByteSpan bytes) {
  ByteReader in(bytes);
  std::vector<ConstraintFailure> failures(
      in.varint(kMaxPageFailures, "the number of a constraint's failures"));
  for (ConstraintFailure& failure : failures) {
    ConstraintState& state = failure.state;
    failure.kind = static_cast<Kind>(in.u8(static_cast<uint8_t>(Kind::kError), "a failure's kind"));
    failure.attempt = get_id(in, "a failure's attempt");
    failure.sequence = in.varint();
    failure.position = static_cast<int64_t>(in.varint(kMaxCount, "a failure's position"));
    failure.token =
        static_cast<int32_t>(static_cast<int64_t>(in.varint(kMaxId + 1, "a failure's token")) - 1);
    failure.allowed = get_id(in, "a failure's allowed tokens");
    failure.in_time = get_id(in, "a failure's tokens in time");
    failure.message = get_text(in);
    state.num_bytes = static_cast<int64_t>(in.varint(kMaxCount, "a failure's bytes"));
    state.num_readings = static_cast<int64_t>(in.varint(kMaxCount, "a failure's readings"));
    state.readings.resize(in.varint(kMaxReadings, "a failure's readings that are told"));
    for (std::string& reading : state.readings) reading = get_text(in);
    state.next_bytes = get_text(in);
    state.completion = get_text(in);
  }
  in.expect_end("the column of failures");
  return failures;
}

bool touches(std::span<const ConstraintFailure> failures,
             const std::function<bool(uint64_t, int64_t)>& hides) {
  return std::any_of(failures.begin(), failures.end(), [&](const ConstraintFailure& failure) {
    return hides(failure.sequence, failure.position);
  });
}

void append_failures(JsonBuffer& out, const std::vector<ConstraintFailure>& failures) {
  if (failures.empty()) return;
  out.raw("\"constraint_failures\":[");
  const auto text = [&out](std::string_view key, std::string_view value) {
    out.raw(key);
    out.string(kept(value));
  };
  const auto number = [&out](std::string_view key, auto value) {
    out.raw(key);
    out.integer(value);
  };
  for (size_t i = 0; i < failures.size(); ++i) {
    const ConstraintFailure& failure = failures[i];
    const ConstraintState& state = failure.state;
    text(i > 0 ? ",\n{\"kind\":" : "\n{\"kind\":", constraint_failure_name(failure.kind));
    number(",\"attempt\":", failure.attempt);
    number(",\"sequence\":", failure.sequence);
    number(",\"position\":", failure.position);
    if (failure.kind == Kind::kRefused) number(",\"token\":", failure.token);
    if (failure.kind == Kind::kDeadlock) {
      number(",\"allowed\":", failure.allowed);
      number(",\"in_time\":", failure.in_time);
    }
    if (!failure.message.empty()) text(",\"message\":", failure.message);
    number(",\"bytes\":", state.num_bytes);
    number(",\"num_readings\":", state.num_readings);
    out.raw(",\"readings\":[");
    for (size_t j = 0; j < std::min(state.readings.size(), kMaxReadings); ++j)
      text(j > 0 ? "," : "", state.readings[j]);
    text("],\"next_bytes\":", state.next_bytes);
    text(",\"completion\":", state.completion);
    out.raw('}');
  }
  out.raw("],\n");
}

}  // namespace vitrine::audit
