// SPDX-License-Identifier: Apache-2.0
// Asks a server that speaks OpenAI's interface, over HTTP or HTTPS, again where it must.
#pragma once

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace cli {

/// Tells where the interface is, and how patiently it is asked.
struct ApiPlace {
  std::string url;   ///< "http://HOST:PORT/v1"
  std::string root;  ///< the same without "/v1": routes beside OpenAI's
  std::string key;   ///< empty: none is sent
  /// Seconds without a piece of an answer; what only keeps a connection open is none.
  int timeout = 600;
  int retries = 6;  ///< further attempts, each after twice the wait
};

/// Reads an address. Throws kInvalidArgument for one that has a user, a query or no host.
ApiPlace read_api_place(const std::string& url, const std::string& key, int timeout, int retries);

/// A whole reply.
struct ApiReply {
  long status = 0;
  std::string body;
  double retry_after = 0;  ///< seconds that the server asks for
  bool is_fine() const { return status >= 200 && status < 300; }
};

/// Who reads a reply while it comes.
class ReplyReader {
 public:
  virtual ~ReplyReader() = default;
  /// An attempt begins: what came before is void.
  virtual void begin() = 0;
  /// Throws kBadFile for what it cannot take. Returns true where it was a piece of the answer.
  virtual bool take(std::string_view bytes) = 0;
  /// The reply has ended. Throws kBadFile; returns false where it was cut off.
  virtual bool end() = 0;
};

/// Asks. Thread-safe; connections are used again.
class ApiClient {
 public:
  explicit ApiClient(ApiPlace place);
  ~ApiClient();
  ApiClient(const ApiClient&) = delete;
  ApiClient& operator=(const ApiClient&) = delete;

  const ApiPlace& place() const { return place_; }
  /// Throws kUnavailable where nobody answers, after `place().retries` more attempts, kCancelled
  /// behind cancel() or a signal, kBadFile for what is no HTTP or beyond 64 MiB. Any status but
  /// those that ask for another attempt comes back.
  ApiReply get(const std::string& url);
  /// Does the same with a body; the reply goes to `reader` where its status is 200.
  ApiReply post(const std::string& url, const std::string& body, ReplyReader* reader = nullptr);
  /// Ends what is under way.
  void cancel() { is_cancelled_ = true; }

 private:
  struct Handles;
  ApiReply ask(const std::string& url, const std::string* body, ReplyReader* reader);

  const ApiPlace place_;
  std::unique_ptr<Handles> handles_;
  std::atomic<bool> is_cancelled_ = false;
};

/// Throws what a reply's status means: kInvalidArgument (the request), kUnsupported (there is no
/// such route or ability), kUnavailable (the key, or the server itself), with what it says.
[[noreturn]] void throw_status(const std::string& url, const ApiReply& reply);

using ApiJson = nlohmann::json;

/// A reply's object. Throws kBadFile for another type, deep nesting and what is no JSON.
ApiJson parse_reply(std::string_view text, const std::string& url);
/// Throws kBadFile: "URL: 'field' is …; expected …". `found`: null where the field is missing.
[[noreturn]] void refuse_reply(const std::string& url, const std::string& field,
                               const ApiJson* found, const std::string& expected);
/// A field that is there and not null, or null.
const ApiJson* find_value(const ApiJson& object, const char* name);
/// A field of that kind; throws kBadFile where it is missing or another.
const ApiJson& list_of(const ApiJson& object, const char* name, const std::string& url);
/// A text that may be missing.
std::string text_of(const ApiJson& object, const char* name, const std::string& url);
/// A whole number from 0 to 2^53 that may be missing (0).
int64_t count_of(const ApiJson& object, const char* name, const std::string& url);
/// Ids of a list.
std::vector<int32_t> ids_of(const ApiJson& list, const char* name, const std::string& url);
/// A log-probability. Throws kBadFile for what is no finite number.
double logprob_value(const ApiJson& value, const std::string& url);

}  // namespace cli
