// SPDX-License-Identifier: Apache-2.0
// A request and what it is replied, without a network.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/serve.h"

namespace vitrine::http {

using Json = nlohmann::ordered_json;

/// Who asks.
struct Client {
  std::string tenant;       ///< empty where there are no keys
  bool is_auditor = false;  ///< it reads accounts, and nothing else
};

struct Request {
  std::string method, path, query;             ///< the path without its percent signs
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
  std::string id;      ///< the client's x-request-id where it is a plain word, else a random one
  std::string suffix;  ///< what the "*" at the end of the route's path stands for
  Client client;
  const std::atomic<bool>* is_gone = nullptr;  ///< the client has gone

  /// Empty where it is not there; `name` in lower case.
  const std::string& header(const std::string& name) const;
};

/// What went wrong, as a status and what bodies say of it.
struct Failure {
  int status = 500;
  std::string type = "server_error";  ///< OpenAI's word
  std::string message = {};
  std::string param = {};                                         ///< the field; empty: none
  std::string request_id = {};                                    ///< of what failed
  Json extra = Json::object();                                    ///< further fields of the error
  std::vector<std::pair<std::string, std::string>> headers = {};  ///< of the reply
};

/// A failure that ends what is being made of a request.
class HttpError : public std::runtime_error {
 public:
  explicit HttpError(Failure failure)
      : std::runtime_error(failure.message), failure_(std::move(failure)) {}
  HttpError(int status, const std::string& message);
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

/// What an error of the library's means.
Failure failure_of(const Error& error);
/// Adds the headers that tell clients whether to ask again, where they are not there.
void add_retry_headers(Failure& failure);
/// What is being thrown.
Failure current_failure();
/// OpenAI's word for a status.
const char* failure_type(int status);

/// Writes the answers of one request's body. Nothing of it is thread-safe.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  /// Takes the next event of the request of that index; returns what a stream says then.
  virtual std::string add(size_t request, const ServeEvent& event) = 0;
  /// Returns what stands behind all: the end of a stream, or the whole body.
  virtual std::string finish() = 0;
  /// Returns how a stream that has begun tells a failure, which is its end.
  virtual std::string fail(const Failure& failure) = 0;
  /// Returns what a stream says that has had nothing to say for a while.
  virtual std::string idle() { return ": still here\n\n"; }
};

class Account;

/// Requests that a reply waits for.
struct Exchange {
  Server* server = nullptr;
  std::vector<ServeRequest> requests;
  bool is_streamed = false;
  std::unique_ptr<AnswerWriter> writer;
  std::vector<std::shared_ptr<Account>> accounts;  ///< of the requests, in their order
};

struct Reply {
  int status = 200;
  std::string type = "application/json; charset=utf-8";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  std::unique_ptr<Exchange> exchange = {};  ///< null: the body is whole
};

/// What a body may hold. Who keeps keys in their order looks through all of them for each.
inline constexpr size_t kMostJsonValues = 8 << 20, kMostJsonKeys = 1024;

/// Writes JSON in one line; bytes that are no UTF-8 become U+FFFD.
std::string dump(const Json& value);
/// A reply of one JSON value.
Reply json_reply(const Json& value);
/// 128 random bits as hexadecimal digits.
std::string random_id();
/// A hash of 128 bits (BLAKE2b) as hexadecimal digits.
std::string digest_of(std::string_view text);
/// A failure as OpenAI's clients read it.
std::string openai_failure(const Failure& failure);
/// A frame of server-sent events.
std::string sse_frame(std::string_view data, std::string_view event = {});

}  // namespace vitrine::http
