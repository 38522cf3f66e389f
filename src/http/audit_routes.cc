// SPDX-License-Identifier: Apache-2.0
// Accounts of requests, for whose they are and for auditors.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "http/account.h"
#include "http/audit_routes.json.h"
#include "http/route.h"

namespace vitrine::http {

namespace {

std::string read_file(const std::string& path, const std::string& what) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) {
    throw HttpError(404,
                    what + " is not there yet; an account is whole when its request has ended");
  }
  return content.str();
}

// /v1/audit/ID, /v1/audit/ID/manifest, /v1/audit/ID/receipt
Reply account(const House& house, const Request& request) {
  const size_t slash = request.suffix.find('/');
  const std::string id = request.suffix.substr(0, slash);
  const std::string part = slash == std::string::npos ? "" : request.suffix.substr(slash + 1);
  const std::string path = find_log(*house.audit, id, request.client);
  Reply reply;
  if (part.empty()) {
    reply.type = "application/octet-stream";
    reply.headers.emplace_back("Content-Disposition", "attachment; filename=\"" + id + ".vtr\"");
    reply.body = read_file(path, "the log");
  } else if (part == "manifest") {
    reply.body = read_file(manifest_path(path), "the manifest");
  } else if (part == "receipt") {
    reply.body = read_file(std::filesystem::path(path).replace_extension(".receipt.json").string(),
                           "the receipt");
  } else {
    throw HttpError(404, "an account has no '" + part.substr(0, 60) +
                             "'; expected its id alone, or behind it /manifest or /receipt");
  }
  reply.headers.emplace_back("Cache-Control", "no-store");
  return reply;
}

VITRINE_REGISTER_ROUTES(kAuditRoutesJson, {
                                              {"GET", "/v1/audit/*", Access::kAuditor, account},
                                          });

}  // namespace

}  // namespace vitrine::http
