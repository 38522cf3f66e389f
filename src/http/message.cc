// SPDX-License-Identifier: Apache-2.0
#include "http/message.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <new>

#include "vitrine/openai.h"

namespace vitrine::http {

const std::string& Request::header(const std::string& name) const {
  static const std::string none;
  const auto found = headers.find(name);
  return found == headers.end() ? none : found->second;
}

const char* failure_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

HttpError::HttpError(int status, const std::string& message)
    : HttpError(Failure{.status = status, .type = failure_type(status), .message = message}) {}

Failure failure_of(const Error& error) {
  Failure failure;
  failure.status = openai_status(error);
  failure.type = failure_type(failure.status);
  failure.message = error.what();
  if (error.kind() == ErrorKind::kIo) {  // it names files of this machine
    log_message(LogLevel::kWarning, "a request failed: " + failure.message);
    failure.message =
        "the server could not write or read a file for this request; its log says which";
  }
  // A message about a field begins with its name in quotes.
  if (failure.message.starts_with('\'')) {
    failure.param = failure.message.substr(1, failure.message.find('\'', 1) - 1);
  }
  return failure;
}

void add_retry_headers(Failure& failure) {
  const auto add = [&](const char* name, const char* value) {
    const bool is_there = std::ranges::any_of(
        failure.headers, [&](const auto& header) { return header.first == name; });
    if (!is_there) failure.headers.emplace_back(name, value);
  };
  // Clients of OpenAI's ask again for every status from 500 on, unless they are told not to.
  if (failure.status == 501) add("x-should-retry", "false");
  if (failure.status == 429 || failure.status == 503) add("Retry-After", "1");
}

Failure current_failure() {
  try {
    throw;
  } catch (const HttpError& error) {
    return error.failure();
  } catch (const Error& error) {
    return failure_of(error);
  } catch (const std::bad_alloc&) {
    return failure_of(Error(ErrorKind::kOutOfMemory, "there is no memory left for this request"));
  } catch (const std::exception& error) {
    return failure_of(Error(ErrorKind::kInternal, error.what()));
  } catch (...) {
    return failure_of(Error(ErrorKind::kInternal, "unexpected failure of an unknown kind"));
  }
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Reply json_reply(const Json& value) {
  Reply reply;
  reply.body = dump(value);
  return reply;
}

namespace {

using Bits128 = std::array<unsigned char, 16>;

std::string hex_of(const Bits128& bits) {
  std::array<char, 2 * std::tuple_size_v<Bits128> + 1> digits{};
  sodium_bin2hex(digits.data(), digits.size(), bits.data(), bits.size());
  return digits.data();
}

}  // namespace

std::string random_id() {
  Bits128 bits{};
  randombytes_buf(bits.data(), bits.size());
  return hex_of(bits);
}

std::string digest_of(std::string_view text) {
  Bits128 bits{};
  crypto_generichash(bits.data(), bits.size(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size(), nullptr, 0);
  return hex_of(bits);
}

std::string openai_failure(const Failure& failure) {
  Json error = {{"message", failure.message},
                {"type", failure.type},
                {"param", failure.param.empty() ? Json(nullptr) : Json(failure.param)},
                {"code", failure.status}};
  error.update(failure.extra);
  return dump({{"error", error}});
}

std::string sse_frame(std::string_view data, std::string_view event) {
  std::string frame;
  if (!event.empty()) frame.append("event: ").append(event).append("\n");
  return frame.append("data: ").append(data).append("\n\n");
}

}  // namespace vitrine::http
