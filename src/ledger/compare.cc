// SPDX-License-Identifier: Apache-2.0
// How what is booked of a run compares with what a log of it and the rates make.
#include <tuple>

#include "vitrine/ledger.h"

namespace vitrine {
namespace {

std::string named(const char* name, const std::string& booked, const std::string& here) {
  return std::string(name) + " is '" + booked + "', the log says '" + here + "'";
}
std::string named(const char* name, int64_t booked, int64_t here) {
  return std::string(name) + " is " + std::to_string(booked) + ", the log says " +
         std::to_string(here);
}

/// The first fact of the run that differs, whichever copy of its log tells it; empty: none.
std::string other_fact(const RunAccount& booked, const RunAccount& run) {
  const std::tuple<const char*, const std::string&, const std::string&> texts[] = {
      {"model", booked.model, run.model},
      {"device", booked.device, run.device},
      {"engine", booked.engine_build, run.engine_build},
      {"sealed_by", booked.sealed_by, run.sealed_by}};
  for (const auto& [name, there, here] : texts) {
    if (there != here) return named(name, there, here);
  }
  if (booked.seal != run.seal) {
    return named("seal", std::string(seal_name(booked.seal)), std::string(seal_name(run.seal)));
  }
  const std::tuple<const char*, int64_t, int64_t> numbers[] = {
      {"started_unix_ns", static_cast<int64_t>(booked.started_unix_ns),
       static_cast<int64_t>(run.started_unix_ns)},
      {"closed_unix_ns", static_cast<int64_t>(booked.closed_unix_ns),
       static_cast<int64_t>(run.closed_unix_ns)},
      {"tokens_in", booked.tokens_in, run.tokens_in},
      {"tokens_out", booked.tokens_out, run.tokens_out},
      {"device_us", booked.device_us, run.device_us}};
  for (const auto& [name, there, here] : numbers) {
    if (there != here) return named(name, there, here);
  }
  return "";
}

}  // namespace

Ledger::Comparison Ledger::compare(const Booked& booked, const RunAccount& run,
                                   const LedgerRates& rates) {
  using Verdict = Comparison::Verdict;
  const Booking& booking = booked.booking;
  if (booking.rates_sha256 != rates.sha256()) {
    return {Verdict::kOther, "booked at other rates than these"};
  }
  if (!rates.has(booking.kind)) return {Verdict::kOther, "the rates have none"};
  if (booking.currency != rates.currency()) {
    return {Verdict::kOther,
            "currency is '" + booking.currency + "', the rates say '" + rates.currency() + "'"};
  }
  if (const std::string fact = other_fact(booked.run, run); !fact.empty()) {
    return {Verdict::kOther, fact};
  }
  // Another copy of the log can differ in its size alone.
  RunAccount as_booked = run;
  const bool is_copy = booked.run.proof != run.proof;
  if (is_copy && booked.run.log_bytes != run.log_bytes) {
    as_booked.log_bytes = booked.run.log_bytes;
  } else if (is_copy) {
    return {Verdict::kOther, named("proof", booked.run.proof, run.proof)};
  } else if (booked.run.log_bytes != run.log_bytes) {
    return {Verdict::kOther, named("log_bytes", booked.run.log_bytes, run.log_bytes)};
  }
  if (booking.lines != rates.book(booking.kind, as_booked).lines) {
    return {Verdict::kOther, "the log and the rates make other lines"};
  }
  return {is_copy ? Verdict::kCopy : Verdict::kSame, ""};
}

}  // namespace vitrine
