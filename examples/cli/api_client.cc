// SPDX-License-Identifier: Apache-2.0
#include "api_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "common.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostReplyBytes = size_t{64} << 20;
constexpr size_t kMostErrorBytes = size_t{64} << 10;
constexpr long kConnectSeconds = 10;
constexpr double kFirstWait = 0.5, kLongestWait = 60;

/// One attempt: what libcurl's calls work on.
struct Attempt {
  CURL* handle = nullptr;
  ReplyReader* reader = nullptr;
  const std::atomic<bool>* is_cancelled = nullptr;
  double timeout = 0;
  ApiReply reply;
  Clock::time_point last = Clock::now();  // a piece of the answer came
  bool is_silent = false;                 // the time has run out
  std::exception_ptr refused;             // by the reader
};

bool is_stopped(const Attempt& attempt) { return *attempt.is_cancelled || interrupt_signal() != 0; }

size_t take_bytes(char* bytes, size_t size, size_t count, void* data) {
  auto& attempt = *static_cast<Attempt*>(data);
  const std::string_view piece(bytes, size * count);
  try {
    curl_easy_getinfo(attempt.handle, CURLINFO_RESPONSE_CODE, &attempt.reply.status);
    if (attempt.reader != nullptr && attempt.reply.status == 200) {
      if (attempt.reader->take(piece)) attempt.last = Clock::now();
      return piece.size();
    }
    attempt.last = Clock::now();
    const bool is_fine = attempt.reply.is_fine();
    const size_t most = is_fine ? kMostReplyBytes : kMostErrorBytes;
    const size_t room = most - std::min(most, attempt.reply.body.size());
    if (is_fine && piece.size() > room) {
      throw vitrine::Error(vitrine::ErrorKind::kBadFile,
                           fmt::format("a reply of more than {} MiB; expected a shorter one",
                                       kMostReplyBytes >> 20));
    }
    attempt.reply.body.append(piece.substr(0, room));
    return piece.size();
  } catch (...) {
    attempt.refused = std::current_exception();
    return 0;  // another number than there were ends the transfer
  }
}

int watch(void* data, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& attempt = *static_cast<Attempt*>(data);
  const std::chrono::duration<double> quiet = Clock::now() - attempt.last;
  attempt.is_silent = quiet.count() > attempt.timeout;
  return attempt.is_silent || is_stopped(attempt) ? 1 : 0;
}

/// Who may be asked once more: connections that were lost, and not what is wrong for good.
bool is_passing(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: return true;
    default: return false;
  }
}

bool is_passing(long status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

std::string plain_line(std::string_view text, size_t most) {
  std::string line(text.substr(0, most));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line + (text.size() > most ? "…" : "");
}

/// Returns what a server says of its refusal.
std::string refusal_text(const ApiReply& reply) {
  constexpr size_t kMostShown = 300;
  const ApiJson json = nests_deeper_than(reply.body, 32)
                           ? ApiJson()
                           : ApiJson::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  const auto message = [](const ApiJson& from) -> const ApiJson* {
    const ApiJson* found = from.is_object() ? find_value(from, "message") : nullptr;
    return found != nullptr && found->is_string() ? found : nullptr;
  };
  if (json.is_object()) {
    const ApiJson* error = find_value(json, "error");
    const ApiJson* found = error != nullptr ? message(*error) : message(json);
    if (found == nullptr && error != nullptr && error->is_string()) found = error;
    if (found != nullptr) return plain_line(found->get_ref<const std::string&>(), kMostShown);
  }
  return plain_line(reply.body, kMostShown);
}

std::string reply_text(const ApiReply& reply) {
  const std::string says = refusal_text(reply);
  return fmt::format("status {}{}{}", reply.status, says.empty() ? "" : ": ", says);
}

}  // namespace

/// Connections that wait for their next use.
struct ApiClient::Handles {
  std::mutex mutex;
  std::vector<CURL*> idle;

  ~Handles() {
    for (CURL* each : idle) curl_easy_cleanup(each);
  }
  CURL* take() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return curl_easy_init();
    CURL* handle = idle.back();
    idle.pop_back();
    return handle;
  }
  void give_back(CURL* handle) {
    const std::lock_guard lock(mutex);
    idle.push_back(handle);
  }
};

ApiPlace read_api_place(const std::string& url, const std::string& key, int timeout, int retries) {
  const size_t scheme = url.find("://");
  std::string rest = scheme == std::string::npos ? "" : url.substr(scheme + 3);
  while (rest.ends_with('/')) rest.pop_back();
  if (rest.empty() || rest.front() == '/' || rest.front() == ':' ||
      rest.find_first_of("@?# \t\r\n") != std::string::npos) {
    refuse(fmt::format("'{}' is no address of a server; expected http://HOST:PORT/v1",
                       plain_line(url, 200)));
  }
  ApiPlace place{url.substr(0, scheme + 3) + rest, "", key, timeout, retries};
  if (rest.find('/') == std::string::npos) place.url += "/v1";
  place.root = place.url.ends_with("/v1") ? place.url.substr(0, place.url.size() - 3) : place.url;
  if (key.find_first_of("\r\n") != std::string::npos) {
    refuse("--api-key has a line break; expected a key of one line");
  }
  return place;
}

ApiClient::ApiClient(ApiPlace place)
    : place_(std::move(place)), handles_(std::make_unique<Handles>()) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) {
    throw vitrine::Error(vitrine::ErrorKind::kUnavailable,
                         fmt::format("libcurl cannot be used: {}", curl_easy_strerror(ready)));
  }
}
ApiClient::~ApiClient() = default;

ApiReply ApiClient::get(const std::string& url) { return ask(url, nullptr, nullptr); }
ApiReply ApiClient::post(const std::string& url, const std::string& body, ReplyReader* reader) {
  return ask(url, &body, reader);
}

ApiReply ApiClient::ask(const std::string& url, const std::string* body, ReplyReader* reader) {
  double wait = kFirstWait;
  for (int attempts = 0;; ++attempts) {
    const std::unique_ptr<CURL, std::function<void(CURL*)>> handle(
        handles_->take(), [this](CURL* used) { handles_->give_back(used); });
    if (!handle) throw std::bad_alloc();
    Attempt attempt;
    attempt.handle = handle.get();
    attempt.reader = reader;
    attempt.is_cancelled = &is_cancelled_;
    attempt.timeout = place_.timeout;
    if (reader != nullptr) reader->begin();

    curl_easy_reset(handle.get());
    const auto set = [&](CURLoption option, auto value) {
      if (curl_easy_setopt(handle.get(), option, value) != CURLE_OK) throw std::bad_alloc();
    };
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_TCP_NODELAY, 1L);
    set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
    set(CURLOPT_WRITEFUNCTION, take_bytes);
    set(CURLOPT_WRITEDATA, &attempt);
    set(CURLOPT_XFERINFOFUNCTION, watch);
    set(CURLOPT_XFERINFODATA, &attempt);
    set(CURLOPT_NOPROGRESS, 0L);
    curl_slist* list = nullptr;
    const auto add_header = [&](const std::string& line) {
      list = curl_slist_append(list, line.c_str());
    };
    if (!place_.key.empty()) add_header("Authorization: Bearer " + place_.key);
    if (body != nullptr) {
      add_header("Content-Type: application/json");
      add_header("Expect:");
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
      set(CURLOPT_POSTFIELDS, body->c_str());
    }
    const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(list,
                                                                              curl_slist_free_all);
    set(CURLOPT_HTTPHEADER, headers.get());

    const CURLcode code = curl_easy_perform(handle.get());
    curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &attempt.reply.status);
    if (attempt.refused) {
      try {
        std::rethrow_exception(attempt.refused);
      } catch (const vitrine::Error& error) {
        throw vitrine::Error(error.kind(), url + ": " + error.what());
      }
    }
    if (is_stopped(attempt)) {
      throw vitrine::Error(vitrine::ErrorKind::kCancelled, "the request was cancelled");
    }
    std::string problem;
    bool is_passing_problem = false;
    if (attempt.is_silent) {
      problem = fmt::format("nothing of an answer came for {} s", place_.timeout);
    } else if (code != CURLE_OK) {
      problem = curl_easy_strerror(code);
      is_passing_problem = is_passing(code);
    } else if (is_passing(attempt.reply.status)) {
      problem = reply_text(attempt.reply);
      is_passing_problem = true;
    } else if (reader != nullptr && attempt.reply.status == 200 && !reader->end()) {
      problem = "the answer was cut off";
      is_passing_problem = true;
    } else {
      return std::move(attempt.reply);
    }
    if (!is_passing_problem || attempts >= place_.retries) {
      throw vitrine::Error(
          code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WEIRD_SERVER_REPLY
              ? vitrine::ErrorKind::kBadFile
              : vitrine::ErrorKind::kUnavailable,
          fmt::format("{}: {}{}; expected a server that answers there", url, problem,
                      attempts > 0 ? fmt::format(", {} times", attempts + 1) : ""));
    }
    curl_off_t asked = 0;
    curl_easy_getinfo(handle.get(), CURLINFO_RETRY_AFTER, &asked);
    const double seconds = std::clamp(static_cast<double>(asked), wait, kLongestWait);
    wait = std::min(2 * wait, kLongestWait);
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < until && !is_stopped(attempt)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

void throw_status(const std::string& url, const ApiReply& reply) {
  using vitrine::ErrorKind;
  const std::string text = url + ": " + reply_text(reply);
  switch (reply.status) {
    case 401:
    case 403:
      throw vitrine::Error(ErrorKind::kUnavailable,
                           text + "; expected a key that the server takes (--api-key)");
    case 400:
    case 413:
    case 422: throw vitrine::Error(ErrorKind::kInvalidArgument, text);
    case 404:
    case 405:
    case 500:  // llama-server's word for what it cannot do with a request
    case 501: throw vitrine::Error(ErrorKind::kUnsupported, text);
    default: throw vitrine::Error(ErrorKind::kUnavailable, text + "; expected status 200");
  }
}

ApiJson parse_reply(std::string_view text, const std::string& url) {
  constexpr int kMostLevels = 64;
  ApiJson json;
  if (!nests_deeper_than(text, kMostLevels)) {
    json = ApiJson::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  if (json.is_object()) return json;
  throw vitrine::Error(vitrine::ErrorKind::kBadFile,
                       fmt::format("{}: the server says '{}'; expected a JSON object of at most {} "
                                   "levels",
                                   url, plain_line(text, 80), kMostLevels));
}

void refuse_reply(const std::string& url, const std::string& field, const ApiJson* found,
                  const std::string& expected) {
  const std::string shown =
      found == nullptr
          ? "missing"
          : plain_line(found->dump(-1, ' ', true, ApiJson::error_handler_t::replace), 60);
  throw vitrine::Error(
      vitrine::ErrorKind::kBadFile,
      fmt::format("{}: '{}' of the reply is {}; expected {}", url, field, shown, expected));
}

const ApiJson* find_value(const ApiJson& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const ApiJson& list_of(const ApiJson& object, const char* name, const std::string& url) {
  const ApiJson* found = find_value(object, name);
  if (found == nullptr || !found->is_array()) refuse_reply(url, name, found, "a list");
  return *found;
}

std::string text_of(const ApiJson& object, const char* name, const std::string& url) {
  const ApiJson* found = find_value(object, name);
  if (found == nullptr) return "";
  if (!found->is_string()) refuse_reply(url, name, found, "a text");
  return found->get<std::string>();
}

int64_t count_of(const ApiJson& object, const char* name, const std::string& url) {
  const ApiJson* found = find_value(object, name);
  if (found == nullptr) return 0;
  const bool is_count = found->is_number() && found->get<double>() >= 0 &&
                        found->get<double>() <= static_cast<double>(kMostWholeNumber);
  if (!is_count) refuse_reply(url, name, found, "a number of 0 or more");
  return static_cast<int64_t>(found->get<double>());
}

std::vector<int32_t> ids_of(const ApiJson& list, const char* name, const std::string& url) {
  std::vector<int32_t> ids;
  if (!list.is_array()) refuse_reply(url, name, &list, "a list of ids");
  for (const ApiJson& id : list) {
    const bool is_id = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                       id.get<int64_t>() <= std::numeric_limits<int32_t>::max();
    if (!is_id) refuse_reply(url, name, &id, "an id");
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

double logprob_value(const ApiJson& value, const std::string& url) {
  if (!value.is_number() || !(value.get<double>() <= 1e-3) || !(value.get<double>() > -1e30)) {
    refuse_reply(url, "logprobs", &value, "a logarithm of a probability");
  }
  return value.get<double>();
}

}  // namespace cli
