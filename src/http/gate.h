// SPDX-License-Identifier: Apache-2.0
// Who is let in.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"
#include "vitrine/http.h"

namespace vitrine::http {

/// Checks keys, hosts and origins. Thread-safe.
class Gate {
 public:
  /// `options` must stay. Throws kInvalidArgument for keys that are too short or given twice.
  explicit Gate(const HttpOptions& options);

  /// Tells whose request it is. Throws HttpError: 401 without a key of this server's, 403 for a
  /// page or a name that may not ask.
  Client admit(const Request& request) const;
  /// Checks where a request without a key comes from. Throws HttpError (403).
  void check_place(const Request& request) const;
  /// Whether it only asks what a page may ask.
  static bool is_preflight(const Request& request);
  /// Headers that let a page read the reply; none where it may not.
  std::vector<std::pair<std::string, std::string>> cors_headers(const Request& request) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    Client client;
  };
  Digest digest_of(std::string_view key) const;
  bool is_origin_allowed(std::string_view origin) const;
  bool is_host_allowed(std::string_view host) const;

  const HttpOptions& options_;
  std::array<unsigned char, 32> secret_{};  // keys are hashed with it, so that times tell nothing
  std::vector<Entry> entries_;
};

}  // namespace vitrine::http
