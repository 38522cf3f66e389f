// SPDX-License-Identifier: Apache-2.0
#include "http_load.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "common.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

[[noreturn]] void refuse_place(const HttpPlace& place, const std::string& why) {
  throw vitrine::Error(
      vitrine::ErrorKind::kUnavailable,
      fmt::format("http://{}:{} cannot be reached ({}); expected a server that listens there",
                  place.host, place.port, why));
}

/// A connection's socket.
class Socket {
 public:
  /// `buffer`: bytes that the kernel may take in ahead of the reader; 0: as it likes.
  explicit Socket(const HttpPlace& place, int buffer = 0) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int problem = ::getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &found);
    if (problem != 0) refuse_place(place, ::gai_strerror(problem));
    for (const addrinfo* each = found; each != nullptr && number_ < 0; each = each->ai_next) {
      number_ = ::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (number_ >= 0 && buffer > 0) {  // later it would bound no window
        ::setsockopt(number_, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
      }
      if (number_ >= 0 && ::connect(number_, each->ai_addr, each->ai_addrlen) != 0) close();
    }
    ::freeaddrinfo(found);
    if (number_ < 0) refuse_place(place, std::strerror(errno));
    const int yes = 1;
    ::setsockopt(number_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int number() const { return number_; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(number_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return;  // its end is read then
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }

 private:
  int number_ = -1;
};

std::string request_text(const HttpPlace& place, const std::string& path, const std::string& body) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n",
                                 body.empty() ? "GET" : "POST", path, place.host, place.port);
  if (!place.api_key.empty()) text += "Authorization: Bearer " + place.api_key + "\r\n";
  if (body.empty()) return text + "\r\n";
  return text + fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                            body.size(), body);
}

std::string completion_body(const vitrine::ServeRequest& request) {
  Json body = {{"model", request.model},
               {"max_tokens", request.max_new_tokens},
               {"temperature", request.sampler.temperature},
               {"ignore_eos", request.ignore_end_of_text},
               {"cache_prompt", request.use_cache},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (request.tokens.empty()) {
    body["prompt"] = request.text;
  } else {
    body["prompt"] = request.tokens;
  }
  return body.dump();
}

/// A request under way: what came of its reply, line by line.
class HttpRequest {
 public:
  HttpRequest(const HttpPlace& place, const vitrine::ServeRequest& request, LoadOutcome& outcome,
              const HttpLoadOptions& options)
      : socket_(place, options.most_bytes_a_second > 0 ? 4096 : 0),
        outcome_(outcome),
        options_(options) {
    begin_ = Clock::now();
    socket_.send(request_text(place, "/v1/completions", completion_body(request)));
  }

  int socket() const { return socket_.number(); }
  bool is_done() const { return socket_.number() < 0; }
  /// Returns whether it may read now, by its speed.
  bool may_read() const {
    if (options_.most_bytes_a_second == 0) return true;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    return static_cast<double>(num_read_) < seconds * options_.most_bytes_a_second;
  }

  void read() {
    char bytes[16384];
    const size_t most = options_.most_bytes_a_second == 0 ? sizeof bytes : 512;
    const ssize_t count = ::recv(socket_.number(), bytes, most, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return end();
    if (num_read_ == 0 && options_.num_begun != nullptr) ++*options_.num_begun;
    num_read_ += static_cast<size_t>(count);
    received_.append(bytes, static_cast<size_t>(count));
    take_lines();
  }

 private:
  void end() {
    socket_.close();
    outcome_.counts.total_seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (!is_whole_ && outcome_.problem.empty()) {
      outcome_.problem = received_.substr(0, 200) + " (the reply ended early)";
    }
  }

  // Sizes of chunks stand in lines of their own, which begin with no "data:".
  void take_lines() {
    size_t begin = 0;
    for (size_t end = received_.find('\n'); end != std::string::npos && !is_done();
         end = received_.find('\n', begin)) {
      const std::string_view line = std::string_view(received_).substr(begin, end - begin);
      begin = end + 1;
      if (line.starts_with("data: ")) take_event(line.substr(6));
      if (line.starts_with("HTTP/1.1 ") && !line.starts_with("HTTP/1.1 200")) {
        outcome_.problem = line;
      }
    }
    received_.erase(0, begin);
  }

  void take_event(std::string_view text) {
    if (text.starts_with("[DONE]")) {
      is_whole_ = true;
      return end();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    const bool is_chunk = text.find("\"finish_reason\":null") != std::string_view::npos;
    if (is_chunk) {
      outcome_.times.push_back(seconds);
      outcome_.tokens.push_back(-1);
      if (options_.close_after > 0 && outcome_.times.size() >= options_.close_after) {
        is_whole_ = true;
        end();
      }
      return;
    }
    const Json chunk = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!chunk.is_object()) return;
    if (chunk.contains("error")) outcome_.problem = chunk["error"].dump();
    const auto usage = chunk.find("usage");
    if (usage == chunk.end() || !usage->is_object()) return;
    outcome_.counts.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
    outcome_.counts.new_tokens = usage->value("completion_tokens", int64_t{0});
    const auto details = usage->find("prompt_tokens_details");
    if (details != usage->end() && details->is_object()) {
      outcome_.counts.cached_tokens = details->value("cached_tokens", int64_t{0});
    }
  }

  Socket socket_;
  LoadOutcome& outcome_;
  const HttpLoadOptions& options_;
  Clock::time_point begin_;
  std::string received_;
  size_t num_read_ = 0;
  bool is_whole_ = false;
};

}  // namespace

HttpPlace read_place(const std::string& url, const std::string& api_key) {
  constexpr std::string_view kScheme = "http://";
  std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : "";
  while (rest.ends_with('/')) rest.pop_back();
  const size_t colon = rest.rfind(':');
  if (rest.empty() || rest.find('/') != std::string::npos || colon == 0) {
    refuse(fmt::format("--url '{}' is no address; expected http://HOST:PORT", url));
  }
  return {rest.substr(0, colon), colon == std::string::npos ? "80" : rest.substr(colon + 1),
          api_key};
}

std::vector<LoadOutcome> run_http_load(const HttpPlace& place,
                                       const std::vector<LoadedRequest>& requests,
                                       const HttpLoadOptions& options) {
  std::vector<LoadOutcome> outcomes(requests.size());
  std::vector<std::unique_ptr<HttpRequest>> running(requests.size());
  const Clock::time_point begin = Clock::now();
  std::vector<pollfd> polled;
  std::vector<HttpRequest*> who;
  for (size_t next = 0, left = requests.size(); left > 0;) {
    stop_if_interrupted("bench serve: cancelled before the end");
    if (options.ends != nullptr && *options.ends) break;
    const double now = std::chrono::duration<double>(Clock::now() - begin).count();
    for (; next < requests.size() && requests[next].at <= now; ++next) {
      running[next] =
          std::make_unique<HttpRequest>(place, requests[next].request, outcomes[next], options);
    }
    polled.clear();
    who.clear();
    for (const auto& each : running) {
      if (!each || each->is_done() || !each->may_read()) continue;
      polled.push_back({each->socket(), POLLIN, 0});
      who.push_back(each.get());
    }
    const double wait = next < requests.size() ? requests[next].at - now : 0.1;
    const int ms =
        options.most_bytes_a_second > 0 ? 5 : static_cast<int>(std::clamp(wait * 1e3, 0.0, 100.0));
    ::poll(polled.data(), polled.size(), ms);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) who[i]->read();
    }
    left = requests.size() - next;
    for (auto& each : running) {
      if (each && each->is_done()) each.reset();
      left += each ? 1 : 0;
    }
  }
  return outcomes;
}

std::string http_get(const HttpPlace& place, const std::string& path) {
  Socket socket(place);
  socket.send(request_text(place, path, ""));
  std::string received;
  char bytes[16384];
  for (ssize_t count = 0; (count = ::recv(socket.number(), bytes, sizeof bytes, 0)) > 0;) {
    received.append(bytes, static_cast<size_t>(count));
  }
  const size_t body = received.find("\r\n\r\n");
  if (!received.starts_with("HTTP/1.1 200") || body == std::string::npos) return "";
  return received.substr(body + 4);
}

}  // namespace cli
