// SPDX-License-Identifier: Apache-2.0
#include "http/gate.h"

#include <arpa/inet.h>
#include <sodium.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace vitrine {

namespace {

constexpr size_t kShortestKey = 8;

std::string tenant_of(const std::string& key) { return "key-" + http::digest_of(key); }

}  // namespace

std::vector<ApiKey> read_api_keys(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw Error(ErrorKind::kIo, path + ": cannot be read; expected a file with a key a line");
  }
  std::vector<ApiKey> keys;
  std::set<std::string> seen;
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::string place = path + ", line " + std::to_string(++number);
    std::istringstream words(line);
    std::vector<std::string> parts;
    for (std::string word; words >> word;) parts.push_back(word);
    if (parts.empty() || parts[0].starts_with('#')) continue;
    if (parts.size() > 2) {
      throw Error(ErrorKind::kBadFile,
                  place + ": has " + std::to_string(parts.size()) +
                      " words; expected a key, a tenant's name and a key, or 'auditor' and a key");
    }
    ApiKey key{.key = parts.back()};
    key.reads_audit = parts.size() == 2 && parts[0] == "auditor";
    if (parts.size() == 2) key.tenant = parts[0];
    if (key.key.size() < kShortestKey) {
      throw Error(ErrorKind::kBadFile, place + ": the key has " + std::to_string(key.key.size()) +
                                           " characters; expected 8 at least");
    }
    if (!seen.insert(key.key).second) {
      throw Error(ErrorKind::kBadFile,
                  place + ": the key stands in an earlier line, too; expected each once");
    }
    keys.push_back(std::move(key));
  }
  if (keys.empty()) {
    throw Error(ErrorKind::kBadFile, path + ": has no key; expected one a line");
  }
  return keys;
}

std::function<std::string(const std::string& tenant)> prefix_store_keys(
    const std::vector<ApiKey>& keys) {
  std::map<std::string, std::string> secrets;
  for (const ApiKey& key : keys) {
    constexpr std::string_view kPurpose = "vitrine prefix store";
    std::string secret(32, '\0');
    const std::string hashed = std::string(kPurpose) + '\0' + key.key;
    crypto_generichash(reinterpret_cast<unsigned char*>(secret.data()), secret.size(),
                       reinterpret_cast<const unsigned char*>(hashed.data()), hashed.size(),
                       nullptr, 0);
    if (!key.reads_audit) {
      secrets.emplace(key.tenant.empty() ? tenant_of(key.key) : key.tenant, std::move(secret));
    }
  }
  return [secrets = std::move(secrets)](const std::string& tenant) {
    const auto found = secrets.find(tenant);
    return found == secrets.end() ? std::string() : found->second;
  };
}

namespace http {

namespace {

// "host:port" and "[address]:port" without the port.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  return host.substr(0, host.rfind(':'));
}

bool is_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

std::string lower(std::string_view text) {
  std::string copy(text);
  for (char& c : copy) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
  return copy;
}

// The key that a client sends, in one of the headers that clients use.
std::string_view sent_key(const Request& request) {
  const std::string_view given = request.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (given.size() > kBearer.size() && lower(given.substr(0, kBearer.size())) == kBearer) {
    return given.substr(kBearer.size());
  }
  return request.header("x-api-key");
}

}  // namespace

Gate::Gate(const HttpOptions& options) : options_(options) {
  randombytes_buf(secret_.data(), secret_.size());
  std::set<Digest> seen;
  for (const ApiKey& key : options.keys) {
    Entry entry{digest_of(key.key), {key.tenant, key.reads_audit}};
    if (key.key.size() < kShortestKey || !seen.insert(entry.digest).second) {
      throw Error(
          ErrorKind::kInvalidArgument,
          "http option 'keys' has a key below 8 characters or one twice; expected long keys, "
          "each once");
    }
    if (entry.client.tenant.empty()) entry.client.tenant = tenant_of(key.key);
    entries_.push_back(std::move(entry));
  }
}

Gate::Digest Gate::digest_of(std::string_view key) const {
  Digest digest{};
  crypto_generichash(digest.data(), digest.size(),
                     reinterpret_cast<const unsigned char*>(key.data()), key.size(), secret_.data(),
                     secret_.size());
  return digest;
}

Client Gate::admit(const Request& request) const {
  if (entries_.empty()) {
    check_place(request);
    return {};
  }
  const Digest digest = digest_of(sent_key(request));
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {  // all of them, whichever it is
    if (sodium_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  if (found == nullptr) {
    Failure failure{.status = 401,
                    .type = failure_type(401),
                    .message = sent_key(request).empty()
                                   ? "no API key was sent; expected 'Authorization: Bearer KEY' or "
                                     "'X-Api-Key: KEY'"
                                   : "the API key is not one of this server's"};
    failure.headers.emplace_back("WWW-Authenticate", "Bearer");
    throw HttpError(failure);
  }
  return found->client;
}

bool Gate::is_host_allowed(std::string_view host) const {
  const std::string name = lower(without_port(host));
  return name.empty() || name == "localhost" || name == lower(options_.host) || is_address(name) ||
         std::ranges::any_of(options_.hosts,
                             [&](const std::string& each) { return lower(each) == name; });
}

bool Gate::is_origin_allowed(std::string_view origin) const {
  return std::ranges::any_of(options_.cors_origins, [&](const std::string& each) {
    return each == "*" || each == origin;
  });
}

void Gate::check_place(const Request& request) const {
  const std::string& host = request.header("host");
  if (!is_host_allowed(host)) {
    throw HttpError(403,
                    "the header 'Host' is '" + host +
                        "', which is no name of this server's; expected its address, or a name "
                        "that it was started with");
  }
  const std::string& origin = request.header("origin");
  if (origin.empty() || is_origin_allowed(origin)) return;
  const size_t scheme = origin.find("://");
  const bool is_own =
      scheme != std::string::npos && lower(origin.substr(scheme + 3)) == lower(host);
  if (!is_own) {
    throw HttpError(403,
                    "pages of '" + origin +
                        "' may not ask this server; expected an origin that it was started with");
  }
}

bool Gate::is_preflight(const Request& request) {
  return request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

std::vector<std::pair<std::string, std::string>> Gate::cors_headers(const Request& request) const {
  const std::string& origin = request.header("origin");
  if (origin.empty() || !is_origin_allowed(origin)) return {};
  std::vector<std::pair<std::string, std::string>> headers = {
      {"Access-Control-Allow-Origin", origin},
      {"Access-Control-Expose-Headers",
       "x-request-id, request-id, x-vitrine-audit-id, Retry-After"},
      {"Vary", "Origin"}};
  if (is_preflight(request)) {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    // Clients send headers of their own; which ones, a page of an allowed origin may choose.
    const std::string& asked = request.header("access-control-request-headers");
    headers.emplace_back("Access-Control-Allow-Headers",
                         asked.empty() ? "Authorization, Content-Type, X-Api-Key" : asked);
    headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return headers;
}

}  // namespace http
}  // namespace vitrine
