// SPDX-License-Identifier: Apache-2.0
#include "http/kv_event_endpoint.h"

#include <arpa/inet.h>

#include <charconv>
#include <string_view>

#include "vitrine/core.h"

namespace vitrine::http {

namespace {

constexpr int kMostPorts = 65535;

[[noreturn]] void refuse_endpoint(const std::string& option, const std::string& given,
                                  const std::string& expected) {
  throw Error(ErrorKind::kInvalidArgument,
              "kv event option '" + option + "' is '" + given + "'; expected " + expected);
}

bool is_loopback(const std::string& host) {
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return host == "[::1]";
}

}  // namespace

KvEventEndpoint::KvEventEndpoint(const std::string& option_name, const std::string& given,
                                 bool is_public)
    : option(option_name) {
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  if (given.starts_with(kIpc) && given.size() > kIpc.size()) {
    is_ipc = true;
    place = given.substr(kIpc.size());
    return;
  }
  const std::string rest = given.starts_with(kTcp) ? given.substr(kTcp.size()) : "";
  const size_t colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    refuse_endpoint(option, given, "tcp://ADDRESS:PORT or ipc://PATH");
  }
  place = rest.substr(0, colon);
  if (place == "localhost") place = "127.0.0.1";  // ZeroMQ binds addresses alone
  const std::string_view digits = std::string_view(rest).substr(colon + 1);
  if (digits != "*") {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc() || end != digits.data() + digits.size() || port < 0 ||
        port > kMostPorts) {
      refuse_endpoint(option, given, "a port from 1 to 65535, or * for one that is free");
    }
  }
  if (!is_public && !is_loopback(place)) {
    refuse_endpoint(option, given,
                    "an address of the loopback (127.0.0.1), since events tell the ids of all "
                    "tenants' prompts and answers; 'is_public' lets others connect");
  }
}

std::string KvEventEndpoint::of_model(size_t number) const {
  if (is_ipc) return "ipc://" + place + (number > 0 ? "_dp" + std::to_string(number) : "");
  if (port == 0) return "tcp://" + place + ":*";
  const size_t own = static_cast<size_t>(port) + number;
  if (own > static_cast<size_t>(kMostPorts)) {
    refuse_endpoint(option, "tcp://" + place + ":" + std::to_string(port),
                    "a lower port, since each further model has the next one");
  }
  return "tcp://" + place + ":" + std::to_string(own);
}

}  // namespace vitrine::http
