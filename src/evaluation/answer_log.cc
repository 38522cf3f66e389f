// SPDX-License-Identifier: Apache-2.0
#include "evaluation/answer_log.h"

#include <algorithm>
#include <filesystem>

#include "vitrine/checkpoint.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kLongestName = 80;

LogHeader header_of(const ModelTargetOptions& options, const ServeRequest& request) {
  LogHeader header = options.audit_header;
  header.seed = request.sampler.seed;
  header.sampler = sampler_option_values(request.sampler);
  if (request.constraint.kind != ServeConstraint::Kind::kNone) {
    header.constraint = {{"kind", "request"}, {"digest", sha256_of_text(request.constraint.text)}};
  } else if (!request.chat.tools_json.empty()) {
    header.constraint = {{"kind", "tools"}, {"digest", sha256_of_text(request.chat.tools_json)}};
  }
  if (!options.drafter.empty()) header.speculation = {{"drafter", options.drafter}};
  return header;
}

VtrOptions log_options(VtrOptions options) {
  options.overwrite = true;  // an item that was cut off is answered again
  options.ring_bytes = std::min<size_t>(options.ring_bytes, size_t{256} << 10);
  return options;
}

}  // namespace

std::string log_name(const std::string& item) {
  std::string name;
  for (const char c : item) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '_' || c == '-';
    name += is_plain ? c : c == '/' ? '.' : '_';
  }
  const bool is_changed = name.size() > kLongestName || name.find('_') != std::string::npos ||
                          std::ranges::count(item, '/') != 1;
  if (is_changed) name = name.substr(0, kLongestName) + "." + sha256_of_text(item).substr(0, 8);
  return name + ".vtr";
}

AnswerLog::AnswerLog(const ModelTargetOptions& options, const ServeRequest& request,
                     const std::string& item)
    : path_((std::filesystem::path(options.audit_folder) / log_name(item)).string()),
      key_(options.audit_log.seal),
      log_(path_, header_of(options, request), log_options(options.audit_log)) {}

std::string AnswerLog::finish(const std::string& reason) {
  log_.finish(reason);
  if (key_) write_manifest(path_, *key_, manifest_path(path_));
  return std::filesystem::path(path_).filename().string();
}

}  // namespace vitrine::evaluation
