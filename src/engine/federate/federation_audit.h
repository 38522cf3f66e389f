// SPDX-License-Identifier: Apache-2.0
// A federation's record of a pass: one account of each token, put together from the accounts of the
// specialists' engines.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Keeps the last record of one engine.
class RecordTap final : public AuditSink {
 public:
  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  std::byte* reserve(size_t num_bytes) override;
  void commit() override {}
  /// Return the words of one of the record's tokens, and of one of its rows.
  const std::byte* token_words(size_t token) const;
  const std::byte* row_words(size_t row) const;
  const AuditLayout& layout() const { return layout_; }

 private:
  AuditPassHeader header() const;

  AuditLayout layout_;
  std::vector<uint64_t> record_;
};

/// One specialist's (or the base's) place in its engine.
struct FederationSource {
  size_t engine = 0;
  int adapter = -1;
};

/// Returns the layout of a federation's records: the layers of each source in turn, with numbers
/// that go on from source to source; rows are an engine's with what the combiner says behind.
AuditLayout make_federation_layout(std::span<const AuditLayout* const> sources,
                                   AuditLayout::Federation federation);

/// What is recorded of one row beside how its token was chosen (RowSampler::record).
struct FederationRow {
  int32_t chosen = -1;
  float logprob = 0;  // of the chosen token, as the joint's row has it
  const kernels::HeadStats* stats = nullptr;
  JointScore score;
  double residual = 0;
  std::span<const SpecialistShare> shares;
};
void write_federation_row(const AuditLayout& layout, const FederationRow& row, std::byte* words);

/// Returns the best token of a row that was not chosen; -1 where there is no other.
int32_t runner_up(const kernels::HeadStats& stats, int32_t chosen);

/// Returns the joint's log-probability less what the recorded parts give.
double reconcile(ShareKind kind, const JointScore& score, std::span<const SpecialistShare> shares);

}  // namespace vitrine::engine
