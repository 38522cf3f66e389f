// SPDX-License-Identifier: Apache-2.0
#include "page_writer.h"

#include <sodium.h>

#include <algorithm>

#include "start_time.h"

namespace vitrine::audit {
namespace {

constexpr size_t kMaxWaiting = 4096;  // failures, or passes with guesses: while no page is written

}  // namespace

PageWriter::PageWriter(const VtrHeader& header, const SealKey& key, PageWriterOptions options)
    : header_(header),
      key_(key),
      codec_(header),
      specs_(codec_.groups()),
      options_(std::move(options)),
      uses_(header.layers, header.counter_tokens) {
  header_.public_key = key.public_key();
  randombytes_buf(header_.log_id.data(), header_.log_id.size());
  const LogStart start = start_now();
  header_.started_unix_ns = start.unix_ns;
  header_.started_monotonic_ns = start.monotonic_ns;
  if (!options_.recipients.empty()) {
    data_keys_ = make_data_keys(specs_);
    header_.sealed_keys = seal_data_keys(data_keys_, options_.recipients);
  }
  for (const VtrRedaction& redaction : options_.redact) {
    redacted_.push_back(find_hidden_groups(redaction.groups));
  }
  columns_.resize(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].id == GroupId::kDigests) digest_column_ = i;
    if (specs_[i].id == GroupId::kText) text_column_ = i;
    if (specs_[i].id == GroupId::kHiddenStates) hidden_column_ = i;
  }
}

void PageWriter::begin(Bytes& out) {
  head_.clear();
  encode_header(header_, specs_, head_);
  try {
    VtrHeader read_back;
    std::vector<GroupSpec> groups;
    parse_header(head_, read_back, groups);
  } catch (const Error& error) {
    throw Error(ErrorKind::kInvalidArgument, std::string("the log's head ") + error.what());
  }
  ByteWriter(out).raw(kMagic);
  append_frame(out, FrameTag::kHead, head_, {}, key_, chain_);
  account_before_ = account_;
}

// ---- What happened
// -------------------------------------------------------------------------------

void PageWriter::apply(VtrEvent event) {
  flush_counted();
  account_.apply(event);
  event.row = num_rows_;
  events_.push_back(event);
}

void PageWriter::flush_counted() {
  for (auto& [sequence, event] : counted_) {
    event.row = num_rows_;
    events_.push_back(event);
  }
  counted_.clear();
}

// The sequence has `length` positions now, whatever was reported before.
void PageWriter::sync(uint64_t sequence, int64_t length) {
  int64_t known = account_.length(sequence);
  if (known < 0) {
    apply({.kind = VtrEvent::Kind::kCreated, .sequence = sequence});
    known = 0;
  }
  if (known < length) {
    apply({.kind = VtrEvent::Kind::kLost,
           .reason = LostReason::kNotReported,
           .sequence = sequence,
           .first = known,
           .count = length - known});
  } else if (known > length) {
    apply({.kind = VtrEvent::Kind::kTruncated, .sequence = sequence, .first = length});
  }
}

void PageWriter::add_event(const AuditEvent& event) {
  const uint64_t sequence = event.sequence;
  switch (event.kind) {
    case AuditEvent::Kind::kCreated:
    case AuditEvent::Kind::kForked: {
      const int64_t known = account_.length(sequence);
      if (known >= 0) {
        apply({.kind = VtrEvent::Kind::kReleased, .sequence = sequence, .first = known});
      }
      if (event.kind == AuditEvent::Kind::kCreated) {
        apply({.kind = VtrEvent::Kind::kCreated, .sequence = sequence});
      } else {
        sync(event.source, event.length);
        apply({.kind = VtrEvent::Kind::kForked,
               .sequence = sequence,
               .source = event.source,
               .count = event.length});
      }
      break;
    }
    case AuditEvent::Kind::kTruncated:
      sync(sequence, event.before);
      sync(sequence, event.length);
      break;
    case AuditEvent::Kind::kCopied: {
      const int64_t first = std::max<int64_t>(account_.length(sequence), 0);
      sync(sequence, first);
      if (event.length <= first) break;
      apply({.kind = VtrEvent::Kind::kCopied,
             .sequence = sequence,
             .source = event.source,
             .first = first,
             .count = event.length - first});
      break;
    }
    case AuditEvent::Kind::kReleased:
      sync(sequence, event.length);
      apply({.kind = VtrEvent::Kind::kReleased, .sequence = sequence, .first = event.length});
      break;
  }
}

void PageWriter::add_failure(ConstraintFailure failure) {
  if (has_column(GroupId::kFailures) && failures_.size() < kMaxWaiting) {
    failures_.push_back(std::move(failure));
  }
}

void PageWriter::add_drafts(DraftedPass drafts) {
  if (!has_column(GroupId::kDrafts) || drafts_.size() >= kMaxWaiting) return;
  if (is_plain_draft(drafts)) return drafts_.push_back(std::move(drafts));
  log_message(LogLevel::kWarning, "audit log: guesses of sequence " +
                                      std::to_string(drafts.sequence) + " at position " +
                                      std::to_string(drafts.position) +
                                      " contradict themselves and are left out");
}

bool PageWriter::has_column(GroupId id) const {
  return std::ranges::find(specs_, id, &GroupSpec::id) != specs_.end();
}

void PageWriter::add_lost(uint64_t sequence, int64_t first, int64_t count, LostReason reason) {
  sync(sequence, first);
  apply({.kind = VtrEvent::Kind::kLost,
         .reason = reason,
         .sequence = sequence,
         .first = first,
         .count = count});
}

// A row whose routes nobody may read is not counted either: less the others it would be told.
bool PageWriter::hides_routes(const TokenRecord& record) const {
  for (size_t i = 0; i < redacted_.size(); ++i) {
    const auto& hides = options_.redact[i].rows;
    if (std::ranges::find(redacted_[i], GroupId::kRouting) == redacted_[i].end()) continue;
    if (!hides || hides(record.sequence, record.position)) return true;
  }
  return false;
}

void PageWriter::count_position(const TokenRecord& record) {
  VtrEvent event{.kind = VtrEvent::Kind::kCounted,
                 .sequence = record.sequence,
                 .first = record.position,
                 .count = 1};
  account_.apply(event);
  const auto [found, is_new] = counted_.emplace(record.sequence, event);
  if (!is_new) ++found->second.count;
}

void PageWriter::add_record(const TokenRecord& record) {
  if (account_.length(record.sequence) != record.position) sync(record.sequence, record.position);
  const bool has_rows = header_.detail != LogDetail::kCounters;
  if (counts_uses() && !(has_rows && hides_routes(record))) uses_.add(record);
  if (!has_rows) {
    count_position(record);
    ++num_tokens_;
    return;
  }
  codec_.append(record, columns_);
  ByteWriter(columns_[digest_column_]).u64(record_digest(record, scratch_words_));
  if (header_.has_text) {
    const std::string text = options_.token_text(record.token);
    const ByteSpan bytes = bytes_of(std::string_view(text).substr(0, kMaxTextBytes));
    ByteWriter(columns_[text_column_]).raw(bytes);
    text_lengths_.push_back(static_cast<uint32_t>(bytes.size()));
  }
  if (codec_.hidden_bytes() > 0) add_hidden_states(record);
  account_.capture(record.sequence, record.position, 1);
  const auto position = static_cast<uint64_t>(record.position);
  if (!runs_.empty() && runs_.back().sequence == record.sequence &&
      runs_.back().first + runs_.back().count == position) {
    ++runs_.back().count;
  } else {
    runs_.push_back({record.sequence, position, 1});
  }
  ++num_rows_;
  ++num_tokens_;
  if (record.has_prediction) ++(record.prediction.generated ? generated_ : scored_);
}

void PageWriter::add_hidden_states(const TokenRecord& record) {
  Bytes& column = columns_[hidden_column_];
  const size_t before = column.size();
  if (!options_.hidden_states_at || options_.hidden_states_at(record)) {
    codec_.write(GroupId::kHiddenStates, record, column);
  }
  hidden_lengths_.push_back(static_cast<uint32_t>(column.size() - before));
}

bool PageWriter::is_full() const {
  constexpr size_t kLengthBytes = 5;  // at most, of a row
  const size_t hidden_bytes = codec_.hidden_bytes() == 0
                                  ? 0
                                  : columns_[hidden_column_].size() + codec_.hidden_bytes() +
                                        (num_rows_ + size_t{1}) * kLengthBytes;
  constexpr size_t kEventsOfOneRecord = 8;
  return num_tokens_ >= static_cast<size_t>(options_.page_tokens) ||
         (header_.has_text && columns_[text_column_].size() > kMaxPageBytes / 2) ||
         (num_rows_ + size_t{1}) * codec_.record_bytes() > kMaxPageBytes ||
         hidden_bytes > kMaxPageBytes ||
         events_.size() + counted_.size() + kEventsOfOneRecord > kMaxPageEvents;
}

// ---- Pages
// ---------------------------------------------------------------------------------------

// Which rows of a group may be written, and the key it is encrypted with.
Treatment PageWriter::treat(const GroupSpec& spec) {
  Treatment treatment;
  const auto key = data_keys_.find(spec.id);
  if (key != data_keys_.end()) treatment.data_key = &key->second;
  visible_.assign(spec.kind == GroupKind::kWhole ? 1 : num_rows_, true);
  for (size_t i = 0; i < redacted_.size(); ++i) {
    const auto& hides = options_.redact[i].rows;
    if (std::find(redacted_[i].begin(), redacted_[i].end(), spec.id) == redacted_[i].end())
      continue;
    if (!hides || is_touched(spec.id, hides)) {
      visible_.assign(visible_.size(), false);
    } else if (spec.kind != GroupKind::kWhole) {
      size_t row = 0;
      for (const IndexRun& run : runs_) {
        for (uint32_t j = 0; j < run.count; ++j, ++row) {
          if (hides(run.sequence, static_cast<int64_t>(run.first + j))) visible_[row] = false;
        }
      }
    }
  }
  const bool hides_some = std::find(visible_.begin(), visible_.end(), false) != visible_.end();
  treatment.visible = hides_some ? &visible_ : nullptr;
  return treatment;
}

// All failures of the page go, and likewise all guesses, where a hidden row has some.
bool PageWriter::is_touched(GroupId id, const std::function<bool(uint64_t, int64_t)>& hides) const {
  if (id == GroupId::kFailures) return touches(page_failures(), hides);
  return id == GroupId::kDrafts && touches(page_drafts(), hides);
}

void PageWriter::encode_page(Bytes& out) {
  flush_counted();
  std::array<uint8_t, 32> secret;
  randombytes_buf(secret.data(), secret.size());
  PageHead page{page_number_, unix_nanoseconds(), num_rows_, passes_, step_ns_, {}};
  payload_.clear();
  for (size_t i = 0; i < specs_.size(); ++i) {
    GroupRows rows;
    rows.bytes.swap(columns_[i]);
    switch (specs_[i].id) {
      case GroupId::kIndex: encode_index(runs_, rows.bytes); break;
      case GroupId::kEvents: encode_events(events_, rows.bytes); break;
      case GroupId::kCounters: encode_counters(kFormatVersion, uses_.due(), rows.bytes); break;
      case GroupId::kFailures: encode_failures(page_failures(), rows.bytes); break;
      case GroupId::kDrafts: encode_drafts(page_drafts(), rows.bytes); break;
      case GroupId::kText: rows.lengths.swap(text_lengths_); break;
      case GroupId::kHiddenStates: rows.lengths.swap(hidden_lengths_); break;
      default: break;
    }
    const SaltKey salt_key = derive_salt_key(secret, static_cast<uint8_t>(specs_[i].id));
    const Treatment treatment = treat(specs_[i]);
    page.groups.push_back(sealer_.seal(specs_[i], rows, num_rows_, salt_key, treatment, payload_));
    rows.bytes.clear();
    rows.bytes.swap(columns_[i]);  // keeps its memory
  }
  sodium_memzero(secret.data(), secret.size());
  head_.clear();
  encode_page_head(page, head_);
  chain_before_ = chain_;
  append_frame(out, FrameTag::kPage, head_, payload_, key_, chain_);
}

std::span<const ConstraintFailure> PageWriter::page_failures() const {
  return std::span(failures_).first(std::min(failures_.size(), kMaxPageFailures));
}

std::span<const DraftedPass> PageWriter::page_drafts() const {
  return std::span(drafts_).first(std::min(drafts_.size(), kMaxPageDrafts));
}

void PageWriter::clear_page() {
  num_tokens_ = 0;
  passes_ = step_ns_ = 0;
  num_rows_ = 0;
  runs_.clear();
  events_.clear();
  counted_.clear();
  text_lengths_.clear();
  hidden_lengths_.clear();
  for (Bytes& column : columns_) column.clear();
  generated_ = scored_ = 0;
}

void PageWriter::page_written() {
  ++page_number_;
  counts_.pages += 1;
  counts_.passes += passes_;
  counts_.step_ns += step_ns_;
  counts_.tokens += num_rows_;
  counts_.generated += generated_;
  counts_.scored += scored_;
  counts_.events += events_.size();
  counts_.sequences = account_.num_sequences();
  counts_.positions = account_.totals();
  failures_.erase(failures_.begin(),
                  failures_.begin() + static_cast<ptrdiff_t>(page_failures().size()));
  drafts_.erase(drafts_.begin(), drafts_.begin() + static_cast<ptrdiff_t>(page_drafts().size()));
  uses_.clear_due();
  clear_page();
  if (options_.can_fail) account_before_ = account_;
}

void PageWriter::page_failed() {
  chain_ = chain_before_;
  const std::vector<IndexRun> runs = std::move(runs_);
  std::vector<VtrEvent> events = std::move(events_);
  clear_page();  // but for failures and guesses, which the next page tells
  account_ = account_before_;
  size_t next = 0;
  uint32_t row = 0;
  const auto apply_events_before = [&](uint32_t end) {
    for (; next < events.size() && events[next].row <= end; ++next) {
      VtrEvent event = events[next];
      if (event.kind == VtrEvent::Kind::kCounted) {
        event.kind = VtrEvent::Kind::kLost;
        event.reason = LostReason::kWriteFailed;
      }
      apply(event);
    }
  };
  for (const IndexRun& run : runs) {
    // A run may go on across an event of another sequence, or of its own.
    for (uint32_t done = 0; done < run.count;) {
      apply_events_before(row);
      uint32_t count = run.count - done;
      if (next < events.size()) count = std::min(count, events[next].row - row);
      apply({.kind = VtrEvent::Kind::kLost,
             .reason = LostReason::kWriteFailed,
             .sequence = run.sequence,
             .first = static_cast<int64_t>(run.first + done),
             .count = count});
      done += count;
      row += count;
    }
  }
  apply_events_before(row);
}

void PageWriter::encode_end(const std::string& stop_reason, Bytes& out) {
  head_.clear();
  audit::encode_end({stop_reason, counts_, unix_nanoseconds()}, head_);
  chain_before_ = chain_;
  append_frame(out, FrameTag::kEnd, head_, {}, key_, chain_);
}

}  // namespace vitrine::audit
