// SPDX-License-Identifier: Apache-2.0
#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "http/connection.h"
#include "vitrine/http.h"

namespace vitrine {

namespace http {

namespace {

using asio::ip::tcp;

constexpr double kLeastUserTimeout = 60;  // seconds
constexpr int kSendBuffer = 64 << 10;     // what a client that does not read may hold here

HttpOptions checked(HttpOptions options) {
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorKind::kInvalidArgument, message);
  };
  const HttpLimits& limits = options.limits;
  if (limits.header_bytes < 1024 || limits.header_bytes > (1 << 24)) {
    refuse("http limit 'header_bytes' is " + std::to_string(limits.header_bytes) +
           "; expected 1024 to 16777216");
  }
  if (limits.connections < 1) refuse("http limit 'connections' is below 1");
  if (limits.answers < 1) refuse("http limit 'answers' is below 1");
  if (limits.embeddings < 1) refuse("http limit 'embeddings' is below 1");
  for (const double each : {limits.header_seconds, limits.body_seconds, limits.idle_seconds,
                            limits.stall_seconds, limits.ping_seconds}) {
    if (!(each > 0 && each < 1e6)) refuse("a time of the http limits is not above 0");
  }
  if (options.model_name.empty()) options.model_name = "vitrine";
  return options;
}

}  // namespace

/// The I/O thread and what it owns.
class HttpLoop {
 public:
  explicit HttpLoop(HttpOptions options)
      : shared_(checked(std::move(options)), io_),
        tls_(make_tls(shared_.options.tls_cert, shared_.options.tls_key)),
        acceptor_(io_) {}

  ~HttpLoop() {
    try {
      stop({});
    } catch (...) {  // no memory for what ends it: the threads go with the process
    }
  }
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  void start() {
    const HttpOptions& options = shared_.options;
    const std::string place = options.host + ":" + std::to_string(options.port);
    ErrorCode error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      throw Error(ErrorKind::kUnavailable,
                  "'" + options.host + "' is no address of this machine (http option 'host')");
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      throw Error(ErrorKind::kUnavailable, place + " cannot be listened on (" + error.message() +
                                               "); expected another 'port' or 'host'");
    }
    port_ = acceptor_.local_endpoint().port();
    accept();
    thread_ = std::thread([this] { run(); });
  }

  uint16_t port() const { return port_; }
  void serve(Server& server, HttpAudit audit, const EmbeddingModel& embeddings) {
    shared_.audit = std::move(audit);
    shared_.embedder.embeddings = embeddings;
    shared_.server = &server;
  }

  void stop(std::chrono::steady_clock::time_point deadline) {
    const std::lock_guard lock(stopping_);
    if (!thread_.joinable()) return;
    shared_.is_ending = true;
    on_io([this] {
      ErrorCode ignored;
      acceptor_.close(ignored);
      end_all(/*waits=*/true);
    });
    while (shared_.counts.exchanges > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    on_io([this] { end_all(/*waits=*/false); });
    shared_.embedder.is_ending = true;
    shared_.slow_worker.join();
    shared_.workers.join();  // their replies are whole
    guard_.reset();
    thread_.join();
  }

 private:
  template <typename Work>
  void on_io(Work work) {
    std::promise<void> done;
    asio::post(io_, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  // A signal is for the host's other threads.
  void run() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    io_.run();
  }

  void end_all(bool waits) {
    for (const auto& [key, weak] : connections_) {
      if (const auto connection = weak.lock()) connection->end(waits);
    }
  }

  void accept() {
    acceptor_.async_accept([this](const ErrorCode& error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {  // no descriptors, most likely
        pause_.expires_after(std::chrono::milliseconds(50));
        pause_.async_wait([this](const ErrorCode&) { accept(); });
        return;
      }
      take(std::move(socket));
      accept();
    });
  }

  void take(tcp::socket socket) {
    std::erase_if(connections_, [](const auto& each) { return each.second.expired(); });
    if (shared_.counts.connections >= shared_.options.limits.connections) return;  // closed
    ErrorCode ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
    // The kernel counts a window that is smaller than a segment as closed, so this is for the dead;
    // connections watch the slow.
    const auto dead = static_cast<unsigned>(
        1e3 * std::max(4 * shared_.options.limits.stall_seconds, kLeastUserTimeout));
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &dead, sizeof dead);
    auto connection =
        std::make_shared<Connection>(shared_, make_transport(std::move(socket), tls_.get()));
    connections_[connection.get()] = connection;
    connection->start();
  }

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(io_);
  Shared shared_;
  const std::unique_ptr<asio::ssl::context> tls_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_{io_};
  std::map<const Connection*, std::weak_ptr<Connection>> connections_;
  uint16_t port_ = 0;
  std::mutex stopping_;
  std::thread thread_;
};

}  // namespace http

HttpServer::HttpServer(HttpOptions options)
    : loop_(std::make_unique<http::HttpLoop>(std::move(options))) {}
HttpServer::~HttpServer() = default;
void HttpServer::start() { loop_->start(); }
uint16_t HttpServer::port() const { return loop_->port(); }
void HttpServer::serve(Server& server, HttpAudit audit, const EmbeddingModel& embeddings) {
  loop_->serve(server, std::move(audit), embeddings);
}
void HttpServer::stop(std::chrono::steady_clock::time_point deadline) { loop_->stop(deadline); }

}  // namespace vitrine
