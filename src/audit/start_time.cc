// SPDX-License-Identifier: Apache-2.0
#include "start_time.h"

#include <chrono>
#include <cstdio>
#include <ctime>

#include "vitrine/audit_log.h"

namespace vitrine {

std::string utc_text(uint64_t unix_ns) {
  const auto seconds = static_cast<time_t>(unix_ns / 1'000'000'000);
  struct tm parts {};
  ::gmtime_r(&seconds, &parts);
  char date[40], text[64];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%09luZ", date,
                static_cast<unsigned long>(unix_ns % 1'000'000'000));
  return text;
}

namespace audit {

namespace {

template <typename Clock>
uint64_t nanoseconds_of() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
          .count());
}

}  // namespace

uint64_t unix_nanoseconds() { return nanoseconds_of<std::chrono::system_clock>(); }

LogStart start_now() {
  return {unix_nanoseconds(), nanoseconds_of<std::chrono::steady_clock>(), engine_build()};
}

}  // namespace audit
}  // namespace vitrine
