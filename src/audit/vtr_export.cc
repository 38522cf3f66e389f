// SPDX-License-Identifier: Apache-2.0
#include "json_schema.h"
#include "vitrine/audit_log.h"

namespace vitrine {

void export_json(VtrReader& reader, const std::function<void(std::string_view)>& write,
                 std::function<TokenPiece(int32_t)> token_text) {
  const VtrHeader& header = reader.header();
  if (!write) {
    throw Error(ErrorKind::kInvalidArgument,
                "audit log '" + reader.path() + "': its JSON goes to no function; expected one");
  }
  if (header.detail == LogDetail::kCounters) {
    throw Error(ErrorKind::kUnsupported,
                "audit log '" + reader.path() +
                    "': level counters has no records to export; see vitrine audit stats");
  }
  AuditLayout layout;
  layout.mode = header.mode;
  layout.level = header.detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard;
  layout.layers = header.layers;
  layout.terms = header.terms;
  for (const int32_t layer : header.hidden_state_layers) layout.hidden_states.push_back({layer, 0});
  layout.hidden_size = header.hidden_size;
  layout.federation = header.federation;
  audit::JsonBuffer out;
  audit::PieceCache pieces(std::move(token_text));
  audit::append_head(out, header.log,
                     {header.started_unix_ns, header.started_monotonic_ns, header.engine_build},
                     layout, header.trace_id, header.detail == LogDetail::kStandard);
  audit::LogCounts counts;
  std::vector<ConstraintFailure> failures;
  std::vector<DraftedPass> drafts;
  std::vector<audit::LogFork> forks;
  VtrPage page;
  while (reader.next(page)) {
    counts.passes += page.passes;
    failures.insert(failures.end(), page.failures.begin(), page.failures.end());
    drafts.insert(drafts.end(), page.drafts.begin(), page.drafts.end());
    for (const VtrEvent& event : page.events) {
      if (event.kind != VtrEvent::Kind::kForked) continue;
      forks.push_back({counts.tokens + event.row, event.sequence, event.source, event.count});
    }
    for (size_t i = 0; i < page.records.size(); ++i) {
      const TokenRecord& record = page.records[i];
      audit::append_record(out, record, pieces, counts.tokens == 0, page.is_redacted[i]);
      counts.tokens += 1;
      if (record.has_prediction) {
        (record.prediction.generated ? counts.generated : counts.scored) += 1;
      }
    }
    write(out.view());
    out.clear();
  }
  if (reader.end()) {
    const VtrCounts& all = reader.end()->counts;
    counts.lost = all.positions.num_lost();
    // Which records predicted something may be what was left out.
    counts.generated = all.generated;
    counts.scored = all.scored;
  }
  audit::append_closing(out, reader.end() ? reader.end()->stop_reason : "open", counts, failures,
                        drafts, forks);
  write(out.view());
}

}  // namespace vitrine
