// SPDX-License-Identifier: Apache-2.0
// vitrine audit manifest, and what audit verify says of a manifest.
#include <fmt/format.h>

#include <filesystem>

#include "audit.h"
#include "output_path.h"
#include "vitrine/audit_log.h"

namespace cli {

ManifestFinding check_manifest(const std::string& run, const vitrine::VtrReport& report) {
  ManifestFinding finding;
  const std::string path = vitrine::manifest_path(run);
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return finding;
  if (report.seal == vitrine::VtrReport::Seal::kBroken) return finding;  // that is said already
  finding.path = path;
  try {
    vitrine::verify_manifest(report, run, path);
  } catch (const vitrine::Error& failure) {
    finding.problem = failure.what();
  }
  return finding;
}

int run_audit_manifest(const AuditArguments& arguments) {
  if (arguments.is_strict) require_private_key("--seal", arguments.key);
  const vitrine::SealKey key = vitrine::SealKey::load(arguments.key);
  if (arguments.out == "-") {
    write_out(vitrine::seal_manifest(arguments.run, key));
    return 0;
  }
  const std::string target =
      arguments.out.empty() ? vitrine::manifest_path(arguments.run) : arguments.out;
  refuse_same_file({"--out", target}, {{"the log", arguments.run},
                                       {"--seal", arguments.key},
                                       {"the public half of --seal", arguments.key + ".pub"}});
  vitrine::write_manifest(arguments.run, key, target);
  const bool is_open = vitrine::verify_vtr(arguments.run).seal == vitrine::VtrReport::Seal::kOpen;
  write_out(fmt::format("{}: a manifest of {}{}\n", target, arguments.run,
                        is_open ? ", which is open: it ends without an end record" : ""));
  return 0;
}

}  // namespace cli
