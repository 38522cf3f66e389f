// SPDX-License-Identifier: Apache-2.0
// The page: a conversation with the account beside it, in one file that asks this server alone.
#include <sodium.h>

#include "http/page.h"
#include "http/page_routes.json.h"
#include "http/route.h"

namespace vitrine::http {

namespace {

// The source that a policy allows an element's text by.
std::string hash_source(std::string_view tag) {
  const std::string open = "<" + std::string(tag) + ">", close = "</" + std::string(tag) + ">";
  const size_t begin = kPage.find(open) + open.size();
  const std::string_view text = kPage.substr(begin, kPage.find(close, begin) - begin);
  unsigned char hash[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(hash, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  char digits[sodium_base64_ENCODED_LEN(sizeof hash, sodium_base64_VARIANT_ORIGINAL)];
  sodium_bin2base64(digits, sizeof digits, hash, sizeof hash, sodium_base64_VARIANT_ORIGINAL);
  return "'sha256-" + std::string(digits) + "'";
}

Reply page(const House& /*house*/, const Request& /*request*/) {
  static const std::string policy =
      "default-src 'none'; style-src " + hash_source("style") + "; script-src " +
      hash_source("script") +
      "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'";
  Reply reply;
  reply.type = "text/html; charset=utf-8";
  reply.headers = {{"Content-Security-Policy", policy},
                   {"Referrer-Policy", "no-referrer"},
                   {"X-Frame-Options", "DENY"},
                   {"Cross-Origin-Opener-Policy", "same-origin"},
                   {"Cross-Origin-Resource-Policy", "same-origin"},
                   {"Cache-Control", "no-cache"}};
  reply.body = kPage;
  return reply;
}

VITRINE_REGISTER_ROUTES(kPageRoutesJson, {
                                             {"GET", "/", Access::kOpen, page},
                                         });

}  // namespace

}  // namespace vitrine::http
