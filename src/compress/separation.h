// SPDX-License-Identifier: Apache-2.0
// Private to the room: how much of a calibration stands in texts that a model is evaluated on.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

namespace vitrine::compress {

/// Finds runs of ids that two corpora share, and texts that are alike.
class Separation {
 public:
  /// Ids of a run: what is shared and shorter is chance.
  static constexpr size_t kRun = 13;

  /// Adds a text of the evaluation.
  void add_evaluation(std::span<const int32_t> ids);
  /// Returns how many of these ids lie in runs that stand in the evaluation, too.
  int64_t shared_tokens(std::span<const int32_t> ids) const;
  /// Returns the largest share (Jaccard's, of runs of 5 ids) that a text has with a window as long
  /// of the evaluation, estimated by MinHash with 128 permutations (Broder 1997).
  double largest_likeness(std::span<const int32_t> ids) const;

 private:
  static constexpr size_t kPermutations = 128;
  using Sketch = std::vector<uint32_t>;
  static Sketch sketch(std::span<const int32_t> ids);

  std::unordered_set<uint64_t> runs_;  // hashes
  std::vector<Sketch> sketches_;       // of windows of the evaluation
};

}  // namespace vitrine::compress
