// SPDX-License-Identifier: Apache-2.0
#include "stream_target.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common.h"

namespace cli {

namespace {

constexpr int kStreamTargetPollMilliseconds = 100;
constexpr int kPatienceMilliseconds = 1000;  // with a receiver that does not read, after Ctrl-C

/// False of a head and of what becomes of sequences: a run may be refused behind them. `message`:
/// with its length, a varint, before the tag of its only field (docs/audit_stream.proto).
bool tells_of_a_pass(std::span<const std::byte> message) {
  constexpr auto kHead = std::byte{1 << 3 | 2}, kEvent = std::byte{3 << 3 | 2};
  size_t at = 0;
  while (at < message.size() && (message[at] & std::byte{0x80}) != std::byte{0}) ++at;
  return at + 1 < message.size() && message[at + 1] != kHead && message[at + 1] != kEvent;
}

}  // namespace

StreamTarget::StreamTarget(const std::string& target) : target_(target) {
  if (target.starts_with("unix:")) {
    connect_socket(target.substr(5));
  } else {
    open_path(target);
  }
}

StreamTarget::~StreamTarget() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void StreamTarget::fail(const char* what, int error_number) {
  throw vitrine::Error(vitrine::ErrorKind::kIo,
                       fmt::format("--audit-stream {}: {}: {}; choose another place", target_, what,
                                   std::generic_category().message(error_number)));
}

void StreamTarget::connect_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    refuse(fmt::format("--audit-stream {}: expected unix:PATH with a path of 1 to {} bytes",
                       target_, sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  descriptor_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) fail("no socket can be made", errno);
  if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error_number = errno;
    ::close(descriptor_);
    fail("nobody listens there", error_number);
  }
  ::fcntl(descriptor_, F_SETFL, O_NONBLOCK);
}

void StreamTarget::open_path(const std::string& path) {
  struct stat status {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  if (is_there && S_ISDIR(status.st_mode)) fail("cannot be opened", EISDIR);
  if (is_there && !S_ISREG(status.st_mode)) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail("cannot be opened", errno);
    ::fcntl(descriptor_, F_SETFL, O_NONBLOCK);
    return;
  }
  if (is_there && ::access(path.c_str(), W_OK) != 0) fail("cannot be written", errno);
  std::error_code error;
  final_path_ = is_there ? std::filesystem::canonical(path, error).string() : path;
  std::string name = std::filesystem::path(final_path_).parent_path().string();
  name += name.empty() ? ".vitrine-XXXXXX" : "/.vitrine-XXXXXX";
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) fail("cannot be created", errno);
  temporary_path_ = name;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(descriptor_, is_there ? status.st_mode & 0777 : 0666 & ~mask);
}

/// Ctrl-C must not wait for a receiver that does not read.
void StreamTarget::wait_until_writable(int& waited_ms) {
  pollfd place{descriptor_, POLLOUT, 0};
  const int ready = ::poll(&place, 1, kStreamTargetPollMilliseconds);
  if (ready != 0 || interrupt_signal() == 0) return;
  waited_ms += kStreamTargetPollMilliseconds;
  if (waited_ms >= kPatienceMilliseconds) fail("its receiver does not read", ETIMEDOUT);
}

void StreamTarget::write(std::span<const std::byte> message) {
  int waited_ms = 0;
  const bool is_account = tells_of_a_pass(message);
  while (!message.empty()) {
    const ssize_t count = ::write(descriptor_, message.data(), message.size());
    if (count >= 0) {
      message = message.subspan(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_until_writable(waited_ms);
    } else if (errno != EINTR) {
      fail("cannot be written", errno);
    }
  }
  if (temporary_path_.empty() || !is_account) return;
  if (::rename(temporary_path_.c_str(), final_path_.c_str()) != 0) fail("cannot be named", errno);
  temporary_path_.clear();
}

std::unique_ptr<vitrine::AuditStream> open_stream(StreamTarget& target, vitrine::LogHeader header,
                                                  const LogOptions& log) {
  using Options = vitrine::VtrOptions;
  vitrine::StreamOptions options;
  if (log.level == "full") options.detail = vitrine::LogDetail::kFull;
  if (log.when_behind == "drop") options.when_behind = Options::WhenBehind::kDrop;
  if (log.on_error == "degrade") options.on_error = Options::OnError::kDegrade;
  options.trace_id = log.trace_id;
  return std::make_unique<vitrine::AuditStream>(
      std::move(header), [&target](std::span<const std::byte> message) { target.write(message); },
      options);
}

std::string stream_note(const std::string& place, const vitrine::AuditStream* stream) {
  if (stream == nullptr) return "";
  const vitrine::StreamCounts& counts = stream->counts();
  std::string note = fmt::format(", stream {}", place);
  if (counts.tokens > 0) {
    note += fmt::format(" ({:.0f} bytes a token)",
                        static_cast<double>(counts.bytes) / static_cast<double>(counts.tokens));
  }
  if (counts.lost > 0) note += fmt::format("; {} positions were dropped from it", counts.lost);
  if (counts.unsent > 0) {
    note += fmt::format("; it broke, {} positions are not in it", counts.unsent);
  }
  return note;
}

}  // namespace cli
