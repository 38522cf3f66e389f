// SPDX-License-Identifier: Apache-2.0
// Keeps what the recorder says of each token of the sequences that run, so that prefixes keep it.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "vitrine/audit.h"
#include "vitrine/step.h"

namespace vitrine::serve {

/// Stands before another sink and reads along. One thread at a time, the steps' thread included.
class RecordTap final : public AuditSink {
 public:
  /// `next` gets all that comes, and must stay. A pass has so many tokens at most.
  RecordTap(SequenceSinks& next, int64_t max_step_tokens);

  /// Follows a sequence until it is released, which begins with these words of earlier records.
  void follow(uint64_t sequence, std::vector<int32_t> words);
  /// [tokens, token_words()] of the sequence's beginning, as far as it is known without a gap.
  std::span<const int32_t> words(uint64_t sequence) const;
  /// Words of a token; 0 before open().
  int64_t token_words() const { return layout_.token_words; }
  /// Tells a sequence's own sink of the tokens that it begins with, whose records are copies of
  /// what was recorded when a prefix was made, its words. Throws what the sink throws.
  void copy(AuditSink& sink, uint64_t sequence, PrefixId prefix, std::span<const int32_t> tokens,
            std::span<const int32_t> words) const;

  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  std::byte* reserve(size_t num_bytes) override;
  void commit() override;
  uint64_t failed_sequence() const override { return next_.failed_sequence(); }
  void on_event(const AuditEvent& event) override;
  void on_failure(const ConstraintFailure& failure) override { next_.on_failure(failure); }
  void on_drafts(const DraftedPass& drafts) override { next_.on_drafts(drafts); }

 private:
  SequenceSinks& next_;
  const int64_t max_step_tokens_;
  const uint64_t salt_;  // digests of origins tell nothing without it
  AuditLayout layout_;
  const std::byte* record_ = nullptr;                         // of the pass under way
  uint64_t pass_ = 0;                                         // the last one
  std::unordered_map<uint64_t, std::vector<int32_t>> words_;  // by sequence
};

}  // namespace vitrine::serve
