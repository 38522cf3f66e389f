// SPDX-License-Identifier: Apache-2.0
// One client: requests one after another, each with its reply.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <ctime>
#include <memory>
#include <string>

#include "http/account.h"
#include "http/bell.h"
#include "http/counts.h"
#include "http/embedder.h"
#include "http/gate.h"
#include "http/route.h"
#include "http/transport.h"
#include "http/wire.h"

namespace vitrine::http {

/// What connections share; it outlives them.
struct Shared {
  Shared(const HttpOptions& given, asio::io_context& io) : options(given), gate(options), io(io) {}

  const HttpOptions options;
  const int64_t created = std::time(nullptr);
  Gate gate;
  asio::io_context& io;
  asio::thread_pool workers{2};
  asio::thread_pool slow_worker{1};  ///< of routes that compute
  int slow_requests = 0;             ///< that wait for it or have it; for the I/O thread
  Embedder embedder;
  HttpCounts counts;
  HttpAudit audit;  // set before `server` is
  const std::shared_ptr<AccountCloser> closer = std::make_shared<AccountCloser>();
  std::atomic<Server*> server = nullptr;
  uint64_t body_bytes = 0;              // of bodies that are being read; the I/O thread's
  std::atomic<bool> is_ending = false;  ///< no further request is taken
};

/// For the I/O thread. It keeps itself while its coroutines run.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, std::unique_ptr<Transport> transport);
  ~Connection();

  void start();
  /// Ends it: at once, or (`waits`) behind the reply that is under way.
  void end(bool waits);

 private:
  using Clock = Bell::Clock;
  class Busy;

  asio::awaitable<void> receive();
  asio::awaitable<void> run();
  asio::awaitable<bool> read_head(RequestReader& reader);
  asio::awaitable<bool> read_body(RequestReader& reader);
  asio::awaitable<bool> handle(RequestReader& reader);
  asio::awaitable<Reply> make_reply(Request& request, const Route& route);
  asio::awaitable<bool> answer(const Request& request, const Route& route, Reply reply);
  asio::awaitable<bool> send(const Request& request, Reply reply);
  asio::awaitable<bool> write(std::string_view bytes);
  void close();
  void watch_stall(double most);
  void watch_reader(size_t untaken);
  void take_inbox(RequestReader& reader);
  Reply failed_reply(const Request& request, Failure failure,
                     std::string (*form)(const Failure&)) const;
  void finish_headers(const Request& request, Reply& reply) const;

  Shared& shared_;
  const std::unique_ptr<Transport> transport_;
  Bell bell_;
  asio::steady_timer stall_;
  std::string inbox_;                  // bytes that no request has taken yet
  std::atomic<bool> is_gone_ = false;  // the client sends no more
  bool is_ending_ = false;             // no further request
  bool is_busy_ = false;               // a request is under way
  bool keeps_alive_ = true;
  bool lingers_ = false;          // the client may still send what nobody reads
  bool has_begun_reply_ = false;  // a stream's head is out
  bool reads_chunks_ = true;
};

}  // namespace vitrine::http
