// SPDX-License-Identifier: Apache-2.0
// A load for a server at an address: completions of ids, streamed, all on one thread.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "serve_load.h"

namespace cli {

/// Names where requests go, "http://HOST:PORT".
struct HttpPlace {
  std::string host, port;
  std::string api_key;  ///< empty: none is sent
};

/// Reads a URL. Throws kInvalidArgument for another form.
HttpPlace read_place(const std::string& url, const std::string& api_key);

/// Says what a load is cut short by.
struct HttpLoadOptions {
  size_t close_after = 0;  ///< events of a request behind which its connection is closed; 0: never
  int most_bytes_a_second = 0;  ///< that each request's reader reads; 0: as many as come
  const std::atomic<bool>* ends = nullptr;    ///< once it is raised, all connections are closed
  std::atomic<int64_t>* num_begun = nullptr;  ///< counts requests of which something has come
};

/// Sends them at their times to /v1/completions, and waits. Times are of chunks that came; a
/// request's counts are those that the last chunk tells. Throws kUnavailable where nobody listens.
std::vector<LoadOutcome> run_http_load(const HttpPlace& place,
                                       const std::vector<LoadedRequest>& requests,
                                       const HttpLoadOptions& options = {});

/// The body of GET `path`; empty where it is not 200.
std::string http_get(const HttpPlace& place, const std::string& path);

}  // namespace cli
