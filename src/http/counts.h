// SPDX-License-Identifier: Apache-2.0
// What an HTTP server has counted.
#pragma once

#include <atomic>
#include <cstdint>

namespace vitrine::http {

struct HttpCounts {
  std::atomic<int64_t> connections = 0;      ///< now
  std::atomic<int64_t> exchanges = 0;        ///< requests under way, now
  std::atomic<uint64_t> requests = 0;        ///< that were read
  std::atomic<uint64_t> refused = 0;         ///< that were told 400 to 499
  std::atomic<uint64_t> failed = 0;          ///< that were told 500 and more
  std::atomic<uint64_t> disconnects = 0;     ///< clients that went before their answer was whole
  std::atomic<uint64_t> stalls = 0;          ///< clients that were cut off since they read nothing
  std::atomic<uint64_t> streamed_bytes = 0;  ///< of answers
};

}  // namespace vitrine::http
