// SPDX-License-Identifier: Apache-2.0
// Where one model's events go: a socket that publishes, and one that says again what was missed.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "http/kv_event_endpoint.h"
#include "vitrine/http.h"

namespace vitrine::http {

/// A socket of ZeroMQ's.
using ZmqSocket = std::unique_ptr<void, int (*)(void*)>;

/// Binds sockets, and sends. For one thread at a time.
class KvEventOutlet {
 public:
  /// `context` is ZeroMQ's and must stay. `number`: of the model, whose name is `model`. Throws
  /// kUnavailable where an endpoint cannot be bound.
  KvEventOutlet(void* context, const KvEventOptions& options, size_t number,
                const std::string& model);

  /// Sends a message, and keeps it for who misses it.
  void publish(uint64_t sequence, std::string payload);
  /// The socket of those who missed some; null where there is none.
  void* replay_socket() const { return replay_.get(); }
  /// Reads what was asked for again, and sends a part of it. `next`: the next message's number.
  void replay(uint64_t next);
  /// Whether somebody waits for what was asked for again.
  bool is_replaying() const { return !replays_.empty(); }
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Sent {
    uint64_t sequence;
    std::string payload;
  };
  /// Who asked, and from where on.
  struct Replay {
    std::string client;
    uint64_t next, end;
    Clock::time_point moved;  ///< when the last message was taken
  };
  enum class Sending : uint8_t { kSent, kFull, kGone };

  void read_requests(uint64_t next);
  Sending send_next(Replay& replay);
  Sending send(const Replay& replay, std::string_view topic, uint64_t sequence,
               std::string_view payload);

  const std::string topic_;
  const size_t most_kept_;
  ZmqSocket publisher_, replay_;
  std::string endpoint_, replay_endpoint_;
  std::deque<Sent> kept_;
  size_t kept_bytes_ = 0;
  std::list<Replay> replays_;
};

}  // namespace vitrine::http
