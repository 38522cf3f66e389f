// SPDX-License-Identifier: Apache-2.0
// From float32 values that a pass read back to the words of its record.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/run/executor.h"
#include "ops/attribution.h"

namespace vitrine::backend_torch {

/// `out` is PassOutput::words throughout: the ids that were chosen, then row records, then token
/// records.
class PassWords {
 public:
  /// Keeps a reference to `layout`.
  PassWords(const ops::Graph& graph, const AuditLayout& layout);

  /// row_floats: ReferenceStep's, [rows, 7]; of the best tokens [rows, ten or the vocabulary] each.
  void write_rows(int64_t rows, const float* row_floats, const float* top_ids,
                  const float* top_logits, std::byte* out) const;
  /// sources: mean squares [tokens, layers], ids and weights [tokens, all top_k], then as far as
  /// the layout has them scores and keys [tokens, layers that have them, 2 * top_k], probabilities.
  void write_tokens(int64_t rows, int64_t tokens, const float* const* sources,
                    std::byte* out) const;
  /// values: [tokens, layers asked for, hidden]
  void write_hidden_states(int64_t rows, int64_t tokens, const float* values, std::byte* out) const;
  /// All of these words from values that were read one by one, in the order of the graph.
  void write_naive(const engine::StepBatch& batch, const std::vector<std::vector<float>>& values,
                   std::byte* out) const;
  /// Terms from the dots [2, vectors, rows], those of `num_streams` streams before those of
  /// experts, and from the routes that stand in the words.
  void write_attribution(const engine::StepBatch& batch, const float* dots, size_t num_streams,
                         size_t vectors, std::byte* out) const;

 private:
  /// The L2 norm, on the host: a device's square root may differ in the last bit.
  float norm(float mean_square) const;

  const AuditLayout& layout_;
  std::vector<ops::AttributionPart> parts_;
  float soft_cap_;  // of the logits; 0: none
  float hidden_;
  int32_t top_count_;
};

}  // namespace vitrine::backend_torch
