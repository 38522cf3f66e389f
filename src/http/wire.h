// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 as bytes: what a request's head says, and heads and chunks of replies.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "http/message.h"

namespace vitrine::http {

/// Reads one request from bytes as they come. Throws HttpError for what is no HTTP (400), too large
/// (413, 431) or of another version (505).
class RequestReader {
 public:
  RequestReader(size_t header_bytes, size_t body_bytes);
  ~RequestReader();

  /// Takes as many of `bytes` as it can use and returns how many that are.
  size_t take(std::string_view bytes);
  bool has_head() const;
  bool is_whole() const;
  bool has_begun() const;
  /// The client waits for "100 Continue" before it sends the body.
  bool waits_for_continue() const;
  /// The coding of its body is another than chunks, so that nobody knows where it ends.
  bool has_odd_coding() const;
  /// How many bytes the body may have; once has_head().
  uint64_t most_body() const;
  bool keeps_alive() const;
  /// The client speaks HTTP/1.1, and so reads chunks.
  bool reads_chunks() const;
  /// The head as far as routes need it; once has_head().
  Request head() const;
  /// The body; once is_whole().
  std::string take_body();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// How a body ends.
enum class BodyEnd : uint8_t { kLength, kChunks, kClose };

/// Writes the status line and the headers. `length` is of kLength.
std::string reply_head(const Reply& reply, BodyEnd end, size_t length, bool keeps_alive);
std::string chunk(std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace vitrine::http
