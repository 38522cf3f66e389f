// SPDX-License-Identifier: Apache-2.0
#include "http/wire.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <cstdio>
#include <ctime>

namespace vitrine::http {

namespace beast_http = boost::beast::http;
using Parser = beast_http::request_parser<beast_http::string_body>;

struct RequestReader::State {
  Parser parser;
  size_t body_bytes = 0;
  bool has_begun = false;
};

namespace {

[[noreturn]] void refuse(const boost::system::error_code& error) {
  if (error == beast_http::error::body_limit) {
    throw HttpError(413, "the body is larger than this server takes");
  }
  if (error == beast_http::error::header_limit) {
    throw HttpError(431, "the headers are larger than this server takes");
  }
  if (error == beast_http::error::bad_version) {
    throw HttpError(505, "the request is of another version; expected HTTP/1.1");
  }
  throw HttpError(400, "the request is no HTTP/1.1 (" + error.message() + ")");
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// A path without its percent signs.
std::string decode_path(std::string_view path) {
  std::string decoded;
  for (size_t i = 0; i < path.size(); ++i) {
    const int high = path[i] == '%' && i + 2 < path.size() ? hex_digit(path[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(path[i + 2]) : -1;
    if (low < 0) {
      decoded += path[i];
      continue;
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

// An id that a log may show as it stands.
bool is_plain_id(const std::string& id) {
  constexpr size_t kLongest = 128;
  return !id.empty() && id.size() <= kLongest && std::ranges::all_of(id, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

const char* reason(int status) {
  if (status == 431) return "Request Header Fields Too Large";
  return beast_http::obsolete_reason(static_cast<beast_http::status>(status)).data();
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[64];
  const size_t length = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text, length};
}

}  // namespace

RequestReader::RequestReader(size_t header_bytes, size_t body_bytes) : state_(new State) {
  state_->parser.header_limit(static_cast<uint32_t>(header_bytes));
  state_->parser.body_limit(body_bytes);
  state_->body_bytes = body_bytes;
  state_->parser.eager(true);
}
RequestReader::~RequestReader() = default;

size_t RequestReader::take(std::string_view bytes) {
  if (bytes.empty()) return 0;
  state_->has_begun = true;
  boost::system::error_code error;
  const size_t used = state_->parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (error && error != beast_http::error::need_more) refuse(error);
  return used;
}

bool RequestReader::has_head() const { return state_->parser.is_header_done(); }
bool RequestReader::is_whole() const { return state_->parser.is_done(); }
bool RequestReader::has_begun() const { return state_->has_begun; }
bool RequestReader::waits_for_continue() const {
  return beast_http::token_list{state_->parser.get()[beast_http::field::expect]}.exists(
      "100-continue");
}
bool RequestReader::has_odd_coding() const {
  const auto& message = state_->parser.get();
  return message.count(beast_http::field::transfer_encoding) > 0 && !state_->parser.chunked();
}
uint64_t RequestReader::most_body() const {
  if (state_->parser.chunked()) return state_->body_bytes;
  return state_->parser.content_length().value_or(0);
}
bool RequestReader::keeps_alive() const { return state_->parser.get().keep_alive(); }
bool RequestReader::reads_chunks() const { return state_->parser.get().version() >= 11; }

Request RequestReader::head() const {
  const auto& message = state_->parser.get();
  Request request;
  request.method = message.method_string();
  const std::string target(message.target());
  const size_t query = target.find('?');
  request.path = decode_path(std::string_view(target).substr(0, query));
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    request.headers.emplace(name, std::string(field.value()));
  }
  request.id = request.header("x-request-id");
  if (!is_plain_id(request.id)) request.id = random_id();
  return request;
}

std::string RequestReader::take_body() { return std::move(state_->parser.get().body()); }

std::string reply_head(const Reply& reply, BodyEnd end, size_t length, bool keeps_alive) {
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " " + reason(reply.status) +
                     "\r\nServer: vitrine\r\nDate: " + date() + "\r\n";
  const auto add = [&](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  if (!reply.type.empty()) add("Content-Type", reply.type);
  for (const auto& [name, value] : reply.headers) add(name, value);
  constexpr int kNoContent = 204;
  if (end == BodyEnd::kLength && reply.status != kNoContent)
    add("Content-Length", std::to_string(length));
  if (end == BodyEnd::kChunks) add("Transfer-Encoding", "chunked");
  add("Connection", keeps_alive && end != BodyEnd::kClose ? "keep-alive" : "close");
  return head + "\r\n";
}

std::string chunk(std::string_view bytes) {
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return std::string(size).append(bytes).append("\r\n");
}

}  // namespace vitrine::http
