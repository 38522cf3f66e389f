// SPDX-License-Identifier: Apache-2.0
#include "http/connection.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "core/json_text.h"
#include "http/body_bytes.h"

namespace vitrine::http {

namespace {

constexpr size_t kMostInbox = 64 << 10;  // bytes beside a head that wait for a request
constexpr double kFarewell = 2;  // seconds that a client has to take the end of a connection
constexpr size_t kMostFrames = 16 << 10;  // bytes of a stream that are written at once

Bell::Clock::duration seconds(double count) {
  return std::chrono::duration_cast<Bell::Clock::duration>(std::chrono::duration<double>(count));
}

// The requests of a reply, which tell the connection of their events.
struct Answers {
  std::vector<ServedRequest> served;
  std::vector<bool> is_whole;
  bool are_whole() const {
    return std::ranges::all_of(is_whole, [](bool each) { return each; });
  }
};

// An answer that was cancelled by nobody here ended since the server does.
std::optional<Failure> failure_in(const ServeEvent& event, const Server& server,
                                  const std::string& model) {
  if (event.kind != ServeEvent::Kind::kFinish) return std::nullopt;
  if (!event.error) {
    if (event.reason != StopReason::kCancelled) return std::nullopt;
    return failure_of(Error(ErrorKind::kUnavailable, "the server is ending"));
  }
  Failure failure = failure_of(*event.error);
  const int64_t most = server.model(model).options().max_context;
  if (failure.status == 400 && event.counts.prompt_tokens >= most) {
    failure.type = "exceed_context_size_error";
    failure.extra = {{"n_prompt_tokens", event.counts.prompt_tokens}, {"n_ctx", most}};
  }
  return failure;
}

}  // namespace

/// Counts a request that is under way.
class Connection::Busy {
 public:
  explicit Busy(Connection& connection) : connection_(connection) {
    connection_.is_busy_ = true;
    ++connection_.shared_.counts.exchanges;
  }
  ~Busy() {
    connection_.is_busy_ = false;
    --connection_.shared_.counts.exchanges;
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Connection& connection_;
};

Connection::Connection(Shared& shared, std::unique_ptr<Transport> transport)
    : shared_(shared), transport_(std::move(transport)), bell_(shared.io), stall_(shared.io) {
  ++shared_.counts.connections;
}
Connection::~Connection() { --shared_.counts.connections; }

void Connection::start() {
  asio::co_spawn(
      shared_.io,
      [self = shared_from_this()]() -> asio::awaitable<void> {
        ErrorCode error;
        self->watch_stall(self->shared_.options.limits.header_seconds);
        co_await self->transport_->open(error);
        self->stall_.cancel();
        if (error) co_return;
        asio::co_spawn(
            self->shared_.io, [self]() { return self->receive(); }, asio::detached);
        co_await self->run();
        self->transport_->close();
      },
      asio::detached);
}

void Connection::end(bool waits) {
  is_ending_ = true;
  if (!waits || !is_busy_) close();
  bell_.ring();
}

// Reads as long as the client writes, so that its end is seen whatever is under way.
asio::awaitable<void> Connection::receive() {
  const auto self = shared_from_this();
  std::string bytes(16 << 10, '\0');
  while (!is_gone_) {
    if (inbox_.size() >= kMostInbox + shared_.options.limits.header_bytes) {
      // Nobody has taken these yet: room is looked for every 20 ms.
      asio::steady_timer pause(shared_.io, std::chrono::milliseconds(20));
      co_await pause.async_wait(asio::use_awaitable);
      continue;
    }
    ErrorCode error;
    const size_t count = co_await transport_->read_some(asio::buffer(bytes), error);
    if (error) is_gone_ = true;
    inbox_.append(bytes.data(), count);
    bell_.ring();
  }
}

void Connection::take_inbox(RequestReader& reader) {
  while (!inbox_.empty() && !reader.is_whole()) {
    const bool had_head = reader.has_head();
    const size_t used = reader.take(inbox_);
    inbox_.erase(0, used);
    if (used == 0 || (!had_head && reader.has_head())) return;
  }
}

asio::awaitable<bool> Connection::read_head(RequestReader& reader) {
  const HttpLimits& limits = shared_.options.limits;
  Clock::time_point deadline = Clock::now() + seconds(limits.idle_seconds);
  bool has_begun = false;
  for (;;) {
    take_inbox(reader);
    if (reader.has_head()) co_return true;
    if (is_gone_ || (is_ending_ && !reader.has_begun())) co_return false;
    if (!has_begun && reader.has_begun()) {
      has_begun = true;
      deadline = Clock::now() + seconds(limits.header_seconds);
    }
    if (Clock::now() >= deadline) {
      if (!has_begun) co_return false;
      throw HttpError(408, "the request's headers did not come in time");
    }
    co_await bell_.wait_until(deadline);
  }
}

asio::awaitable<bool> Connection::read_body(RequestReader& reader) {
  if (!reader.is_whole() && reader.waits_for_continue()) {
    const bool is_written = co_await write("HTTP/1.1 100 Continue\r\n\r\n");
    if (!is_written) co_return false;
  }
  const Clock::time_point deadline = Clock::now() + seconds(shared_.options.limits.body_seconds);
  for (;;) {
    take_inbox(reader);
    if (reader.is_whole()) co_return true;
    if (is_gone_) co_return false;
    if (Clock::now() >= deadline) throw HttpError(408, "the request's body did not come in time");
    co_await bell_.wait_until(deadline);
  }
}

asio::awaitable<void> Connection::run() {
  for (bool goes_on = true; goes_on && !is_gone_ && !is_ending_;) {
    RequestReader reader(shared_.options.limits.header_bytes, shared_.options.limits.body_bytes);
    std::optional<Failure> failure;
    try {
      const bool has_head = co_await read_head(reader);
      if (!has_head) break;
      const Busy busy(*this);
      goes_on = co_await handle(reader);
    } catch (...) {
      failure = current_failure();
    }
    if (!failure) continue;
    // What could not be read leaves nobody knows what behind it.
    keeps_alive_ = false;
    lingers_ = true;
    if (has_begun_reply_) break;  // what was begun cannot be told otherwise
    // Named, since GCC 12 frees what is made within an awaited call twice.
    const Request none;
    Reply reply = failed_reply(none, *failure, openai_failure);
    goes_on = co_await send(none, std::move(reply));
  }
  if (is_gone_) co_return;
  watch_stall(kFarewell);  // TLS waits for the other side's word
  co_await transport_->finish();
  stall_.cancel();
  // Who is still sending would lose the reply to a reset.
  const Clock::time_point deadline = Clock::now() + seconds(kFarewell);
  while (lingers_ && !is_gone_ && Clock::now() < deadline) {
    inbox_.clear();
    co_await bell_.wait_until(deadline);
  }
}

void Connection::close() {
  is_gone_ = true;
  transport_->close();
}

// Closes the connection unless stall_ is cancelled within so many seconds.
void Connection::watch_stall(double most) {
  stall_.expires_after(seconds(most));
  stall_.async_wait([self = shared_from_this()](const ErrorCode& stopped) {
    if (!stopped) self->close();
  });
}

// Closes the connection where, until stall_ is cancelled, the client takes in nothing of what was
// written for too long. A write may need more room than a slow client makes in that time.
void Connection::watch_reader(size_t untaken) {
  stall_.expires_after(seconds(shared_.options.limits.stall_seconds));
  stall_.async_wait([self = shared_from_this(), untaken](const ErrorCode& stopped) {
    if (stopped) return;
    const size_t now = self->transport_->untaken();
    if (now < untaken) return self->watch_reader(now);
    ++self->shared_.counts.stalls;
    self->close();
  });
}

Reply Connection::failed_reply(const Request& request, Failure failure,
                               std::string (*form)(const Failure&)) const {
  failure.request_id = request.id;
  add_retry_headers(failure);
  Reply reply;
  reply.status = failure.status;
  reply.headers = failure.headers;
  reply.body = form(failure);
  return reply;
}

void Connection::finish_headers(const Request& request, Reply& reply) const {
  if (!request.id.empty()) reply.headers.emplace_back("x-request-id", request.id);
  // Anthropic's clients know it by another name.
  if (!request.id.empty() && !request.header("anthropic-version").empty()) {
    reply.headers.emplace_back("request-id", request.id);
  }
  const std::string& trace = request.header("traceparent");
  if (!trace.empty() && trace.size() < 128) reply.headers.emplace_back("traceparent", trace);
  reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
  for (auto& header : shared_.gate.cors_headers(request))
    reply.headers.push_back(std::move(header));
}

// One request; false: the connection ends behind it.
asio::awaitable<bool> Connection::handle(RequestReader& reader) {
  Request request = reader.head();
  request.is_gone = &is_gone_;
  ++shared_.counts.requests;
  has_begun_reply_ = false;
  keeps_alive_ = reader.keeps_alive() && !is_ending_ && !shared_.is_ending;
  reads_chunks_ = reader.reads_chunks();
  const Route* route = nullptr;
  std::optional<Failure> failure;
  try {
    if (reader.has_odd_coding()) {
      keeps_alive_ = false;
      throw HttpError(400, "the header 'Transfer-Encoding' does not end with 'chunked'");
    }
    if (Gate::is_preflight(request)) {
      Reply preflight{.status = 204, .type = ""};
      if (!reader.is_whole()) keeps_alive_ = false;
      co_return co_await send(request, std::move(preflight));
    }
    route = &find_route(request);
    if (route->access == Access::kOpen) {
      if (shared_.options.keys.empty()) shared_.gate.check_place(request);
    } else {
      request.client = shared_.gate.admit(request);
      if (request.client.is_auditor && route->access != Access::kAuditor) {
        throw HttpError(403, "this key reads accounts alone; expected a client's key");
      }
    }
    const std::string& type = request.header("content-type");
    const bool is_json = type.empty() || type.find("json") != std::string::npos;
    if (request.method == "POST" && !is_json) {
      throw HttpError(415, "the body is of type '" + type.substr(0, 60) +
                               "'; expected Content-Type: application/json");
    }
    if (shared_.server == nullptr && route->access != Access::kOpen &&
        route->access != Access::kLoading) {
      Failure loading{.status = 503, .type = failure_type(503), .message = "Loading model"};
      loading.headers.emplace_back("Retry-After", "5");
      throw HttpError(loading);
    }
    if (request.method == "POST") {
      const BodyBytes budget(shared_.body_bytes, reader.most_body(),
                             shared_.options.limits.all_body_bytes);
      const bool is_whole = co_await read_body(reader);
      if (!is_whole) co_return false;
      request.body = reader.take_body();
    } else if (!reader.is_whole()) {
      keeps_alive_ = false;  // nobody reads a body here
    }
  } catch (...) {
    failure = current_failure();
  }
  if (failure) {
    if (!reader.is_whole()) {  // the rest of the body is not read
      keeps_alive_ = false;
      lingers_ = true;
    }
    Reply failed =
        failed_reply(request, *failure, route != nullptr ? route->failure : openai_failure);
    co_return co_await send(request, std::move(failed));
  }
  Reply reply = co_await make_reply(request, *route);
  if (reply.exchange == nullptr) co_return co_await send(request, std::move(reply));
  co_return co_await answer(request, *route, std::move(reply));
}

// Runs the route on a worker, so that a large body holds up nobody's stream.
asio::awaitable<Reply> Connection::make_reply(Request& request, const Route& route) {
  Reply reply;
  if (is_gone_) co_return reply;  // the workers may have ended
  if (route.is_slow && shared_.slow_requests >= shared_.options.limits.embeddings) {
    const Error error(ErrorKind::kOutOfMemory,
                      "too many requests wait to be embedded; expected another try later");
    reply = failed_reply(request, failure_of(error), route.failure);
    co_return reply;
  }
  shared_.slow_requests += route.is_slow ? 1 : 0;
  co_await asio::co_spawn(
      route.is_slow ? shared_.slow_worker : shared_.workers,
      [&]() -> asio::awaitable<void> {
        try {
          const House house{shared_.options, shared_.server, shared_.created,  &shared_.counts,
                            &shared_.audit,  shared_.closer, &shared_.embedder};
          if (request.method == "POST" && !request.body.empty()) {
            check_json(request.body, "the body", kMostJsonValues, kMostJsonKeys);
          }
          reply = route.handle(house, request);
        } catch (...) {
          reply = failed_reply(request, current_failure(), route.failure);
        }
        co_return;
      },
      asio::use_awaitable);
  shared_.slow_requests -= route.is_slow ? 1 : 0;
  co_return reply;
}

asio::awaitable<bool> Connection::answer(const Request& request, const Route& route, Reply reply) {
  const std::unique_ptr<Exchange> exchange = std::move(reply.exchange);
  std::optional<Failure> failure;
  Answers answers;
  answers.is_whole.resize(exchange->requests.size());
  const std::string model = exchange->requests.empty() ? "" : exchange->requests.front().model;
  try {
    for (ServeRequest& one : exchange->requests) {
      one.on_event = [rope = bell_.rope()] { rope->pull(); };
      answers.served.push_back(exchange->server->submit(std::move(one)));
    }
  } catch (...) {
    failure = current_failure();
  }
  std::string accounts;
  for (const std::shared_ptr<Account>& each : exchange->accounts) {
    if (!each->id().empty()) accounts += (accounts.empty() ? "" : ", ") + each->id();
  }
  if (!accounts.empty()) reply.headers.emplace_back("x-vitrine-audit-id", accounts);
  const HttpLimits& limits = shared_.options.limits;
  const Clock::time_point begin = Clock::now();
  Clock::time_point last_written = begin;
  bool has_head = false;
  const BodyEnd end = reads_chunks_ ? BodyEnd::kChunks : BodyEnd::kClose;
  if (exchange->is_streamed) {
    reply.type = "text/event-stream; charset=utf-8";
    reply.headers.emplace_back("Cache-Control", "no-cache");
    reply.headers.emplace_back("X-Accel-Buffering", "no");
  }
  while (!failure) {
    std::string frames;
    bool has_more = false;
    for (size_t i = 0; i < answers.served.size() && !failure && !has_more; ++i) {
      while (!answers.is_whole[i]) {
        std::optional<ServeEvent> event = answers.served[i].next_until({});
        if (!event) break;
        failure = failure_in(*event, *exchange->server, model);
        if (failure) break;
        answers.is_whole[i] = event->kind == ServeEvent::Kind::kFinish;
        frames += exchange->writer->add(i, *event);
        has_more = frames.size() >= kMostFrames;
        if (has_more) break;
      }
    }
    const bool is_whole = !failure && answers.are_whole();
    if (is_whole && !exchange->is_streamed) {
      if (is_gone_) co_return false;  // the workers may have ended
      co_await asio::co_spawn(
          shared_.workers,  // a body may be large
          [&]() -> asio::awaitable<void> {
            reply.body = exchange->writer->finish();
            co_return;
          },
          asio::use_awaitable);
      co_return co_await send(request, std::move(reply));
    }
    if (is_whole) frames += exchange->writer->finish();
    const Clock::time_point now = Clock::now();
    const bool is_quiet = now - last_written >= seconds(limits.ping_seconds);
    if (exchange->is_streamed && frames.empty() && is_quiet && !failure)
      frames = exchange->writer->idle();
    if (!frames.empty() && (has_head || !failure)) {
      std::string bytes;
      if (!std::exchange(has_head, true)) {
        has_begun_reply_ = true;
        finish_headers(request, reply);
        bytes = reply_head(reply, end, 0, keeps_alive_);
      }
      bytes += end == BodyEnd::kChunks ? chunk(frames) : frames;
      frames = {};  // the client may take its time
      if (is_whole && end == BodyEnd::kChunks) bytes += kLastChunk;
      shared_.counts.streamed_bytes += bytes.size();
      const bool is_written = co_await write(bytes);
      if (!is_written) {
        ++shared_.counts.disconnects;
        co_return false;
      }
      last_written = Clock::now();
    }
    if (is_whole) co_return keeps_alive_&& end == BodyEnd::kChunks;
    if (is_gone_) {
      ++shared_.counts.disconnects;
      co_return false;  // the requests go with `answers`
    }
    if (failure || has_more) continue;
    const bool is_late =
        limits.request_seconds > 0 && now - begin >= seconds(limits.request_seconds);
    if (is_late) {
      failure =
          Failure{.status = 408,
                  .type = failure_type(408),
                  .message = "the answer was not whole in the time that this server gives it"};
      continue;
    }
    Clock::time_point wakes = last_written + seconds(limits.ping_seconds);
    if (!exchange->is_streamed) wakes = now + seconds(limits.ping_seconds);
    if (limits.request_seconds > 0)
      wakes = std::min(wakes, begin + seconds(limits.request_seconds));
    co_await bell_.wait_until(wakes);
  }
  if (!has_head) {
    Reply failed = failed_reply(request, *failure, route.failure);
    co_return co_await send(request, std::move(failed));
  }
  failure->request_id = request.id;
  std::string last = exchange->writer->fail(*failure);
  if (end == BodyEnd::kChunks) last = chunk(last).append(kLastChunk);
  co_await write(last);
  co_return false;
}

asio::awaitable<bool> Connection::send(const Request& request, Reply reply) {
  if (reply.status >= 500) {
    ++shared_.counts.failed;
  } else if (reply.status >= 400) {
    ++shared_.counts.refused;
  }
  finish_headers(request, reply);
  const BodyEnd end = BodyEnd::kLength;
  std::string bytes = reply_head(reply, end, reply.body.size(), keeps_alive_);
  if (request.method != "HEAD") bytes += reply.body;
  const bool is_written = co_await write(bytes);
  co_return is_written&& keeps_alive_;
}

// Writes all of it; false where the client has gone or reads nothing for too long.
asio::awaitable<bool> Connection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    watch_reader(transport_->untaken());
    ErrorCode error;
    const size_t count =
        co_await transport_->write_some(asio::buffer(bytes.data(), bytes.size()), error);
    stall_.cancel();
    if (error) {
      is_gone_ = true;
      co_return false;
    }
    bytes.remove_prefix(count);
  }
  co_return true;
}

}  // namespace vitrine::http
