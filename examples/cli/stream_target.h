// SPDX-License-Identifier: Apache-2.0
// Where generate --audit-stream sends its messages: a file, a pipe or a socket.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "log_options.h"
#include "vitrine/audit_stream.h"

namespace cli {

/// Opened at once, so that a place that cannot be written fails before anything is generated; a
/// named pipe waits for its reader. A file appears under its name with the first pass.
class StreamTarget {
 public:
  /// A path, or unix:PATH for a listening socket. Throws kIo, kInvalidArgument.
  explicit StreamTarget(const std::string& target);
  ~StreamTarget();
  StreamTarget(const StreamTarget&) = delete;
  StreamTarget& operator=(const StreamTarget&) = delete;

  /// All of the message. Throws kIo (disk full, nobody reads any more); also where a receiver does
  /// not read and the user wants to stop. Call where SIGPIPE is blocked.
  void write(std::span<const std::byte> message);

 private:
  void connect_socket(const std::string& path);
  void open_path(const std::string& path);
  void wait_until_writable(int& waited_ms);
  [[noreturn]] void fail(const char* what, int error_number);

  const std::string target_;
  std::string final_path_, temporary_path_;  // of a file that has no name yet
  int descriptor_ = -1;
};

std::unique_ptr<vitrine::AuditStream> open_stream(StreamTarget& target, vitrine::LogHeader header,
                                                  const LogOptions& log);

/// What went there, for the closing note; empty without a stream.
std::string stream_note(const std::string& place, const vitrine::AuditStream* stream);

}  // namespace cli
