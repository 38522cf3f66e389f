// SPDX-License-Identifier: Apache-2.0
#include <sodium.h>

#include <algorithm>
#include <cmath>

#include "account.h"
#include "vtr_pages.h"

namespace vitrine {
namespace {

using audit::throw_damaged;

void check_signature(const audit::Frame& frame, const audit::Digest& chain, const PublicKey& key) {
  const audit::Bytes message = audit::signed_message(chain);
  if (crypto_sign_verify_detached(frame.signature.data(), message.data(), message.size(),
                                  key.data()) != 0) {
    throw_damaged("its signature is not by the key " + public_key_text(key));
  }
}

/// Where a hash differs that the content made, the bytes do.
void check_header(const audit::FrameReader& frames) {
  audit::Bytes again;
  audit::encode_header(frames.header(), frames.groups(), again);
  if (!std::ranges::equal(again, frames.head_frame().head)) {
    throw_damaged("the head is not canonical");
  }
}

/// Puts the page's positions into the account, in the order in which they came.
void account_for(const audit::OpenPage& page, audit::Account& account) {
  const std::vector<VtrEvent>& events = page.page.events;
  size_t next = 0;
  uint32_t row = 0;
  const auto apply_events = [&] {
    for (; next < events.size() && events[next].row == row; ++next) account.apply(events[next]);
  };
  for (const audit::IndexRun& run : page.runs) {
    for (uint32_t done = 0; done < run.count;) {
      apply_events();
      uint32_t count = run.count - done;
      if (next < events.size()) count = std::min(count, events[next].row - row);
      account.capture(run.sequence, static_cast<int64_t>(run.first + done), count);
      done += count;
      row += count;
    }
  }
  apply_events();
  if (next != events.size()) throw_damaged("has events behind its last row");
}

/// Positions whose experts were counted, by the events and by the counts themselves.
struct CountedTokens {
  uint64_t by_events = 0, by_counts = 0, failed = 0;
  bool has_few = false;  // a count of fewer tokens than the head says
  bool is_known = true;  // every page's could be read
};

void add_events(const audit::OpenPage& page, CountedTokens& tokens) {
  for (const VtrEvent& event : page.page.events) {
    const auto count = static_cast<uint64_t>(event.count);
    if (event.kind == VtrEvent::Kind::kCounted) tokens.by_events += count;
    if (event.kind == VtrEvent::Kind::kLost && event.reason == LostReason::kWriteFailed) {
      tokens.failed += count;
    }
  }
}

/// Checks that the histograms add up to what so many tokens use: the tokens that the page names, in
/// version 6 those that its events say were counted.
void check_counters(const audit::OpenPage& page, const VtrHeader& header, CountedTokens& tokens) {
  const uint64_t before = tokens.by_events;
  add_events(page, tokens);
  if (page.page.expert_uses.empty()) return;
  const bool is_old = header.format_version == audit::kOldestVersion;
  const uint64_t counted = is_old ? tokens.by_events - before : page.page.expert_use_tokens;
  tokens.by_counts += counted;
  if (!is_old) {
    // Fewer than the head says may stand in one count alone: that of a short run.
    if (tokens.has_few) throw_damaged("counts experts behind a count of too few tokens");
    tokens.has_few = counted < static_cast<uint64_t>(header.counter_tokens);
    if (tokens.has_few && (header.detail != LogDetail::kCounters || tokens.by_counts > counted)) {
      throw_damaged("counts the experts of " + std::to_string(counted) + " tokens, expected " +
                    std::to_string(header.counter_tokens) + " or more");
    }
  }
  for (size_t layer = 0; layer < header.layers.size(); ++layer) {
    uint64_t uses = 0;
    for (const uint64_t count : page.page.expert_uses[layer]) uses += count;
    if (uses != counted * static_cast<uint64_t>(header.layers[layer].top_k)) {
      throw_damaged("counts " + std::to_string(uses) + " uses of experts in layer " +
                    std::to_string(header.layers[layer].layer) + ", expected " +
                    std::to_string(header.layers[layer].top_k) + " for each of " +
                    std::to_string(counted) + " positions");
    }
  }
}

/// At level counters every position is in the counts at the end.
void check_counted(const VtrHeader& header, const CountedTokens& tokens) {
  if (header.detail != LogDetail::kCounters || !tokens.is_known) return;
  if (tokens.by_counts >= tokens.by_events &&
      tokens.by_counts <= tokens.by_events + tokens.failed) {
    return;
  }
  throw_damaged("the pages count the experts of " + std::to_string(tokens.by_counts) +
                " positions, expected " + std::to_string(tokens.by_events));
}

/// A logit is its terms and the rounding: exactly so at level full, where every number is whole.
void check_sum(const TokenRecord& record, const AttributionRecord& of, bool is_full) {
  struct Side {
    float logit, rounding;
    float TermRecord::*value;
  };
  for (const Side& side :
       {Side{of.logit, of.rounding, &TermRecord::value},
        Side{of.runner_up_logit, of.runner_up_rounding, &TermRecord::runner_up}}) {
    double sum = 0, error = 0;
    for (const TermRecord& term : of.terms) {
      const double value = double{term.*side.value};
      sum += value;
      error += std::fabs(value) * 0x1p-11 + 0x1p-25;  // half a unit of binary16
    }
    const auto rounding = static_cast<float>(double{side.logit} - sum);
    if (!std::isfinite(rounding) || !std::isfinite(side.rounding)) continue;
    const double off = std::fabs(double{rounding} - double{side.rounding});
    if (is_full ? off == 0 : off <= error + std::fabs(double{rounding}) * 0x1p-23) continue;
    throw_damaged("a logit at position " + std::to_string(record.position) + " of sequence " +
                  std::to_string(record.sequence) + " is " + std::to_string(side.logit) +
                  ", expected the sum of its terms and the rounding, " +
                  std::to_string(sum + double{side.rounding}));
  }
}

void check_sums(const audit::OpenPage& page, const VtrHeader& header) {
  if (header.terms.empty()) return;
  const bool is_full = header.detail == LogDetail::kFull;
  for (const TokenRecord& record : page.page.records) {
    check_sum(record, record.prediction.attribution, is_full);
    for (const AttributionRecord& of : record.prediction.federation.attributions) {
      check_sum(record, of, is_full);
    }
  }
}

/// Shares and sums of logits stand for each prediction that can be read, and for nothing else.
void check_predictions(const audit::OpenPage& page, const std::vector<audit::GroupSpec>& specs) {
  using audit::GroupId;
  const auto find = [&](GroupId id) -> const audit::OpenGroup* {
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].id == id && page.groups[i].is_readable()) return &page.groups[i];
    }
    return nullptr;
  };
  const audit::OpenGroup* predictions = find(GroupId::kPrediction);
  const audit::OpenGroup* digests = find(GroupId::kDigests);
  const audit::OpenGroup* sums = find(GroupId::kAttribution);
  const audit::OpenGroup* shares = find(GroupId::kFederation);
  for (size_t row = 0; row < page.page.records.size(); ++row) {
    const TokenRecord& record = page.page.records[row];
    const PredictionRecord& of = record.prediction;
    const auto can_read = [row](const audit::OpenGroup* group) {
      return group != nullptr && group->shows(row);
    };
    const auto fail = [&](const std::string& what) {
      throw_damaged(what + " at position " + std::to_string(record.position) + " of sequence " +
                    std::to_string(record.sequence));
    };
    if (can_read(digests) && page.page.digests[row] == 0) fail("lacks the digest");
    if (!can_read(predictions)) continue;
    const auto check = [&](const audit::OpenGroup* group, bool is_there, const char* name) {
      if (!can_read(group) || is_there == record.has_prediction) return;
      fail(std::string(is_there ? "has the " : "lacks the ") + name + " of a prediction that is " +
           (is_there ? "not there" : "there"));
    };
    check(sums, !of.attribution.terms.empty() || !of.federation.attributions.empty(),
          "attribution");
    check(shares, !of.federation.specialists.empty(), "shares");
  }
}

void count_page(const audit::OpenPage& page, const audit::Account& account, VtrCounts& counts) {
  counts.pages += 1;
  counts.passes += page.head.passes;
  counts.step_ns += page.head.step_ns;
  counts.tokens += page.head.rows;
  counts.events += page.page.events.size();
  counts.sequences = account.num_sequences();
  counts.positions = account.totals();
  for (const TokenRecord& record : page.page.records) {
    if (record.has_prediction) ++(record.prediction.generated ? counts.generated : counts.scored);
  }
}

void check_end(const VtrEnd& end, const audit::Frame& frame, VtrCounts counts, bool is_redacted) {
  audit::Bytes again;
  audit::encode_end(end, again);
  if (!std::ranges::equal(again, frame.head) || !frame.payload.empty()) {
    throw_damaged("the end record is not canonical");
  }
  if (is_redacted) {
    // Which records predicted something may be what was left out.
    counts.generated = end.counts.generated;
    counts.scored = end.counts.scored;
  }
  if (counts == end.counts) return;
  const auto name = [](const VtrCounts& of) {
    return std::to_string(of.pages) + " pages, " + std::to_string(of.tokens) + " records and " +
           std::to_string(of.positions.total()) + " positions";
  };
  throw_damaged("the end record's counts are others (" + name(end.counts) +
                ") than those of the "
                "pages (" +
                name(counts) + ")");
}

/// Names the groups of which rows are not there. The layers' marks go with routing and norms, which
/// have no less to tell; they are named where nothing else is.
void name_missing(const std::vector<audit::GroupSpec>& specs, const audit::OpenPage& page,
                  VtrReport& report) {
  const auto add = [&](std::vector<std::string>& names, audit::GroupId id) {
    const std::string name = audit::group_name(id);
    if (id == audit::GroupId::kLayerMarks && !names.empty()) return;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const audit::OpenGroup& group = page.groups[i];
    if (group.is_closed()) {
      add(report.closed_columns, specs[i].id);
    } else if (group.is_redacted()) {
      add(report.redacted_columns, specs[i].id);
    }
  }
}

void verify_frames(audit::FrameReader& frames, const PublicKey& key, audit::DataKeys data_keys,
                   VtrReport& report) {
  check_signature(frames.head_frame(), frames.chain(), key);
  check_header(frames);
  const audit::PageOpener opener(frames.header(), frames.groups(), std::move(data_keys));
  audit::Account account;
  audit::Frame frame;
  audit::OpenPage page;
  CountedTokens counted;
  while (frames.next(frame)) {
    check_signature(frame, frames.chain(), key);
    if (frame.tag == audit::FrameTag::kEnd) {
      const VtrEnd end = audit::parse_end(frame.head);
      check_counted(frames.header(), counted);
      check_end(end, frame, report.counts, report.redacted_groups + report.closed_groups > 0);
      if (frames.has_more()) throw_damaged("there are bytes after the end record");
      report.counts = end.counts;
      report.stop_reason = end.stop_reason;
      report.closed_unix_ns = end.closed_unix_ns;
      report.seal = VtrReport::Seal::kComplete;
      return;
    }
    opener.open(frame, true, page);
    if (page.head.number != report.counts.pages) {
      throw_damaged("is page " + std::to_string(page.head.number) + ", expected page " +
                    std::to_string(report.counts.pages));
    }
    opener.check_canonical(frame, page);
    check_counters(page, frames.header(), counted);
    if (page.redacted_groups + page.closed_groups > 0) counted.is_known = false;
    check_sums(page, frames.header());
    check_predictions(page, frames.groups());
    account_for(page, account);
    report.redacted_groups += page.redacted_groups;
    report.closed_groups += page.closed_groups;
    name_missing(frames.groups(), page, report);
    count_page(page, account, report.counts);
  }
  report.seal = VtrReport::Seal::kOpen;
  report.torn_bytes = frames.torn_bytes();
}

}  // namespace

VtrReport verify_vtr(const std::string& path, const std::optional<PublicKey>& key,
                     const std::optional<SealKey>& reader) {
  VtrReport report;
  report.is_key_given = key.has_value();
  std::unique_ptr<audit::FrameReader> frames;
  try {
    frames = std::make_unique<audit::FrameReader>(path);
    report.header = frames->header();
    for (const audit::GroupSpec& spec : frames->groups()) {
      if (spec.id != audit::GroupId::kIndex && spec.id != audit::GroupId::kEvents) {
        report.columns.push_back(audit::group_name(spec.id));
      }
    }
    if (key && *key != report.header.public_key) {
      throw_damaged("the log is sealed with the key " + public_key_text(report.header.public_key) +
                    ", expected " + public_key_text(*key));
    }
    verify_frames(*frames, report.header.public_key, audit::open_data_keys(report.header, reader),
                  report);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInvalidArgument && frames)
      frames->fail(error.what(), error.kind());
    if (error.kind() != ErrorKind::kBadFile) throw;
    report.seal = VtrReport::Seal::kBroken;
    report.problem = frames ? frames->located(error.what()) : error.what();
    if (frames) {
      report.page = frames->frame_number();
      report.offset = frames->frame_offset();
    }
  }
  return report;
}

}  // namespace vitrine
