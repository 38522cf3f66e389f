// SPDX-License-Identifier: Apache-2.0
// vitrine audit redact.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "audit.h"
#include "log_options.h"
#include "output_path.h"

namespace cli {

namespace {

/// The head is signed and stays as it is, with what it says of a constraint.
void warn_of_constraint(const AuditArguments& arguments, const vitrine::LogHeader& log) {
  const bool has_text =
      std::ranges::any_of(log.constraint, [](const auto& pair) { return pair.first == "text"; });
  if (!tells_of_text(arguments.columns) || !has_text) return;
  write_note(fmt::format(
      "{}: its head has the text of the constraint, which is signed with it and cannot be left "
      "out; generate --redact writes its SHA-256 instead",
      arguments.out));
}

/// FIRST-LAST; all where none is given.
struct Positions {
  int64_t first = 0, last = std::numeric_limits<int64_t>::max();
  bool holds(int64_t position) const { return position >= first && position <= last; }
};

Positions parse_positions(const std::string& text) {
  if (text.empty()) return {};
  const std::vector<int64_t> range = parse_numbers(text, '-');
  if (range.size() != 2 || range[1] < range[0]) {
    refuse(fmt::format("--positions {}: expected FIRST-LAST, as 0-11", text));
  }
  return {range[0], range[1]};
}

void require_record(const std::string& log, const Positions& positions) {
  vitrine::VtrReader reader(log);
  vitrine::VtrPage page;
  while (reader.next(page)) {
    for (const vitrine::TokenRecord& record : page.records) {
      if (positions.holds(record.position)) return;
    }
  }
  refuse(fmt::format("--positions {}-{}: {} has no record there", positions.first, positions.last,
                     log));
}

/// A token is told at its own position, and by the one before it, which predicted it.
void warn_of_predictions(const AuditArguments& arguments, const Positions& positions) {
  const bool hides_tokens = std::ranges::any_of(
      arguments.columns, [](const std::string& one) { return one == "tokens" || one == "text"; });
  if (!hides_tokens) return;
  int64_t first = positions.last, last = 0, count = 0;
  vitrine::VtrReader reader(arguments.out, reader_key(arguments.decrypt));
  vitrine::VtrPage page;
  while (reader.next(page)) {
    for (const vitrine::TokenRecord& record : page.records) {
      if (!record.has_prediction || record.prediction.token < 0) continue;
      if (!positions.holds(record.position + 1)) continue;
      first = std::min(first, record.position);
      last = std::max(last, record.position);
      ++count;
    }
  }
  if (count == 0) return;
  write_note(
      fmt::format("{}: {} of the tokens are still told by what predicted them; leave out "
                  "predictions and digests, too (--columns prediction,digests --positions "
                  "{}-{})",
                  arguments.out, count, first, last));
}

}  // namespace

int run_audit_redact(const AuditArguments& arguments) {
  refuse_same_file({"the copy", arguments.out},
                   {{"the log", arguments.run}, {"--decrypt", arguments.decrypt}});
  if (arguments.out.ends_with(".json")) {
    refuse(fmt::format("{}: the copy is a sealed log; expected a name that ends in .vtr",
                       arguments.out));
  }
  vitrine::VtrRedaction redaction;
  redaction.groups = arguments.columns;
  const Positions positions = parse_positions(arguments.positions);
  if (!arguments.positions.empty()) {
    require_record(arguments.run, positions);
    redaction.rows = [positions](uint64_t, int64_t position) { return positions.holds(position); };
  }
  vitrine::redact_vtr(arguments.run, arguments.out, redaction, reader_key(arguments.decrypt),
                      arguments.overwrite);
  const vitrine::VtrReport report = vitrine::verify_vtr(arguments.out);
  if (!arguments.positions.empty() && !report.header.sealed_keys.empty()) {
    write_note(
        fmt::format("{}: the log is encrypted, and what stands of {} beside the positions "
                    "that were left out is in the clear in this copy",
                    arguments.out, fmt::join(arguments.columns, ", ")));
  }
  warn_of_predictions(arguments, positions);
  if (const std::string left = what_still_tells(arguments.columns, report.columns); !left.empty()) {
    write_note(
        fmt::format("{}: whoever has the model still finds the text by {}; leave these "
                    "out, too, to withhold it",
                    arguments.out, left));
  }
  write_out(fmt::format("{}: {}; {} column groups of pages were left out, whole or in part\n",
                        arguments.out, seal_line(report), report.redacted_groups));
  warn_of_constraint(arguments, report.header.log);
  return 0;
}

}  // namespace cli
