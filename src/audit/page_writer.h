// SPDX-License-Identifier: Apache-2.0
// Turns records and events into frames of a `.vtr`. It has no file and no thread.
#pragma once

#include <functional>
#include <map>

#include "account.h"
#include "draft_list.h"
#include "failure_list.h"
#include "page_columns.h"
#include "vtr_rows.h"

namespace vitrine::audit {

struct PageWriterOptions {
  int page_tokens = 4096;
  bool can_fail = false;  // page_failed() may be called (costs a copy of the account a page)
  std::function<std::string(int32_t)> token_text;
  std::vector<VtrRecipient> recipients;
  std::vector<VtrRedaction> redact;
  std::function<bool(const TokenRecord&)> hidden_states_at;  // empty: everywhere
};

/// Gathers records and events for a page, and encodes head, pages and end. Not thread-safe.
class PageWriter {
 public:
  /// Throws what seal_data_keys() and find_groups() throw.
  PageWriter(const VtrHeader& header, const SealKey& key, PageWriterOptions options);

  /// Appends magic and head frame. Throws kInvalidArgument where the head could not be read back.
  void begin(Bytes& out);

  void add_pass(uint64_t step_ns) {
    ++passes_;
    step_ns_ += step_ns;
  }
  void add_record(const TokenRecord& record);
  void add_event(const AuditEvent& event);
  /// Adds a failure. Does nothing in a log without a constraint, which has no column for it. Where
  /// pages cannot be written, no more than 4,096 failures wait.
  void add_failure(ConstraintFailure failure);
  /// Adds a pass's guesses. Does nothing in a log whose head names no drafter, which has no column
  /// for them. Where pages cannot be written, no more than 4,096 passes wait. Warns of a pass that
  /// contradicts itself, and leaves it out.
  void add_drafts(DraftedPass drafts);
  void add_lost(uint64_t sequence, int64_t first, int64_t count, LostReason reason);
  /// Returns true where the page takes no further record and has to be closed.
  bool is_full() const;
  bool has_many_failures() const { return failures_.size() >= kMaxPageFailures; }
  bool has_many_drafts() const { return drafts_.size() >= kMaxPageDrafts; }
  bool is_empty() const {
    return num_tokens_ == 0 && events_.empty() && passes_ == 0 && failures_.empty() &&
           drafts_.empty() && (!is_last_ || uses_.due().tokens == 0);
  }

  /// Says that no record follows: counts that were held back go to the page under way.
  void end_records() {
    is_last_ = true;
    if (counts_uses()) uses_.finish(header_.detail == LogDetail::kCounters);
  }

  /// Appends the page's frame. page_written() or page_failed() has to follow.
  void encode_page(Bytes& out);
  void page_written();
  /// Says that the page is gone: its records' positions are lost, and the next page says so.
  void page_failed();
  void encode_end(const std::string& stop_reason, Bytes& out);

  const VtrCounts& counts() const { return counts_; }

 private:
  void apply(VtrEvent event);
  void sync(uint64_t sequence, int64_t length);
  void flush_counted();
  bool counts_uses() const { return header_.counter_tokens > 0; }
  bool hides_routes(const TokenRecord& record) const;
  void count_position(const TokenRecord& record);
  void add_hidden_states(const TokenRecord& record);
  bool has_column(GroupId id) const;
  std::span<const ConstraintFailure> page_failures()
      const;                                         // those that the next page has room for
  std::span<const DraftedPass> page_drafts() const;  // likewise
  bool is_touched(GroupId id, const std::function<bool(uint64_t, int64_t)>& hides) const;
  void clear_page();
  Treatment treat(const GroupSpec& spec);

  VtrHeader header_;
  const SealKey key_;
  const RowCodec codec_;
  const std::vector<GroupSpec>& specs_;
  const PageWriterOptions options_;
  std::vector<std::vector<GroupId>> redacted_;  // [options_.redact]
  DataKeys data_keys_;
  std::vector<bool> visible_;
  ColumnSealer sealer_;
  Digest chain_{};
  Account account_, account_before_;
  VtrCounts counts_;

  // The members below belong to the page under way.
  size_t num_tokens_ = 0;
  uint64_t passes_ = 0, step_ns_ = 0;  // of the page under way
  std::vector<IndexRun> runs_;
  uint32_t num_rows_ = 0;
  std::vector<VtrEvent> events_;
  std::vector<ConstraintFailure> failures_;
  std::vector<DraftedPass> drafts_;
  std::map<uint64_t, VtrEvent> counted_;  // not yet in events_, by sequence
  UseCounter uses_;                       // of experts, by this page's records and earlier ones
  bool is_last_ = false;
  std::vector<Bytes> columns_;  // [groups]
  std::vector<uint32_t> text_lengths_, hidden_lengths_;
  uint64_t generated_ = 0, scored_ = 0;

  std::vector<uint32_t> scratch_words_;
  size_t digest_column_ = 0, text_column_ = 0, hidden_column_ = 0;
  Bytes head_, payload_;
  uint64_t page_number_ = 0;
  Digest chain_before_{};
};

}  // namespace vitrine::audit
