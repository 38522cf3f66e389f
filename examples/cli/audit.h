// The subcommands of `vitrine audit`.
#pragma once

#include "audit_run.h"

namespace cli {

/// What the subcommands were given; each uses some.
struct AuditArguments {
  std::string run, other, model, key, out, expert, positions;
  std::vector<std::string> columns;
  int limit = 40;
  int64_t position = -1;
  bool json = false, html = false, parquet = false;
};

int run_audit_keygen(const AuditArguments& arguments);
int run_audit_verify(const AuditArguments& arguments);
int run_audit_export(const AuditArguments& arguments);
int run_audit_redact(const AuditArguments& arguments);
int run_audit_show(const AuditArguments& arguments);
int run_audit_top(const AuditArguments& arguments);
int run_audit_stats(const AuditArguments& arguments);
int run_audit_diff(const AuditArguments& arguments);

/// The run as one self-contained page of HTML.
std::string run_page(const Run& run);

/// What a run is worth as an account, in one line: seal, and states of positions.
std::string account_line(const Run& run);

}  // namespace cli
