// SPDX-License-Identifier: Apache-2.0
// The subcommands of `vitrine audit`.
#pragma once

#include "audit_run.h"

namespace cli {

/// What the subcommands were given; each uses some.
struct AuditArguments {
  std::string run, other, model, key, decrypt, out, expert, positions;
  std::string parquet_key, parquet_text_key;
  std::vector<std::string> columns, required;
  int limit = 40;
  int64_t position = -1;
  uint64_t most_bytes = 0;  // of memory, for a log's records
  bool overwrite = false, json = false, html = false, parquet = false, force_routes = false;
  bool is_strict = false, requires_unredacted = false;
  DeviceOptions device;
};

int run_audit_keygen(const AuditArguments& arguments);
int run_audit_verify(const AuditArguments& arguments);
int run_audit_manifest(const AuditArguments& arguments);
int run_audit_export(const AuditArguments& arguments);
int run_audit_redact(const AuditArguments& arguments);
int run_audit_show(const AuditArguments& arguments);
int run_audit_top(const AuditArguments& arguments);
int run_audit_stats(const AuditArguments& arguments);
int run_audit_diff(const AuditArguments& arguments);
int run_audit_replay(const AuditArguments& arguments);

/// What a log's manifest beside it is worth.
struct ManifestFinding {
  std::string path;     ///< empty: there is none to check
  std::string problem;  ///< empty: it fits the log
};
ManifestFinding check_manifest(const std::string& run, const vitrine::VtrReport& report);

/// Where two records differ.
struct Difference {
  int32_t layer = -1;  ///< -1: outside the layers
  std::string value;   ///< "residual norm", "weight of expert 3", …
  std::string left, right;
  /// Names the kinds of all that differs, in the order of the pass: "norm", "routing", …
  std::vector<std::string> kinds = {};
  /// "layer 2, residual norm: 1.5 and 1.25"
  std::string text() const;
};

/// What two logs of rounded values keep of unrounded ones, for each layer; or empty.
struct MarkPair {
  std::vector<vitrine::LayerMark> left, right;
};

/// Which of two records lack something that their logs left out.
struct HiddenSides {
  bool left = false, right = false;
};

/// The first value, in the order of the pass, in which two records differ by more than `tolerance`
/// (relative), or whose marks differ. `run` turns ids into text. `hidden`: where something was left
/// out or is encrypted; what is not there (NaN, -1) is equal to anything.
std::optional<Difference> find_difference(const Run& run, const vitrine::TokenRecord& left,
                                          const vitrine::TokenRecord& right, double tolerance,
                                          const HiddenSides& hidden = {},
                                          const MarkPair& marks = {});

/// A record in the form of the log's values: they are rounded in a .vtr log of level standard.
vitrine::TokenRecord as_logged(const Run& run, vitrine::TokenRecord record);

/// The run as one self-contained page of HTML.
std::string run_page(const Run& run);

/// Says what a sealed log is worth as an account, in one line: verify and show begin with it.
std::string seal_line(const vitrine::VtrReport& report);
/// "lost (sink too slow 10, not reported 2)".
std::string lost_text(const vitrine::VtrAccount& positions);
/// What a run is worth as an account, in one line: seal, and states of positions.
std::string account_line(const Run& run);
/// Refuses a log of level counters, which has no records.
void require_records(const Run& run);
/// Returns false where account_line() must be said first: a broken or open log, and lost positions.
bool is_complete(const Run& run);
/// Returns what is_complete() says of a sealed log, from its report alone.
bool is_complete(const vitrine::VtrReport& report);

}  // namespace cli
