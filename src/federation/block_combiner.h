// SPDX-License-Identifier: Apache-2.0
// Combiners whose rows are made block by block, and the log-sum-exp of a row's blocks.
#pragma once

#include <cstddef>
#include <span>

#include "vitrine/combiner.h"

namespace vitrine {

/// Tokens of a block: what has one reference for exponentials, and what a thread makes at once.
inline constexpr size_t kJointBlock = 1024;

/// A specialist's row as its log-sum-exp made it.
struct RowExponentials {
  std::span<const float> values;  ///< [vocabulary] exp(logit - its block's max), at least exp(-87)
  std::span<const float> block_max;  ///< [blocks] the largest logit of each
};

/// A combiner whose joint of a token needs nothing of other tokens but what begin() saw, so that
/// several threads can make a row: begin(), then combine_block() for each block, from any thread
/// and in any order. The combiners of federation files are of this kind.
class BlockCombiner : public Combiner {
 public:
  /// The whole row on this thread, without exponentials.
  void combine(const CombinerInput& input, std::span<float> joint) final;

  /// Sees the position before any of its blocks is made.
  virtual void begin(const CombinerInput& input) = 0;
  /// Tokens [first, first + joint.size()) of the row. `exponentials`: [specialists], or empty. Must
  /// not throw.
  virtual void combine_block(const CombinerInput& input,
                             std::span<const RowExponentials> exponentials, size_t first,
                             std::span<float> joint) const = 0;
  /// True where exponentials are of use.
  virtual bool uses_exponentials() const { return false; }
  /// False: the log-sum-exp of what the blocks made is taken off them, and set here.
  virtual bool is_normalised() const { return true; }
  /// Is told the row's log-sum-exp before explain(), where is_normalised() is false.
  virtual void set_log_normaliser(double /*log_normaliser*/) {}
};

/// What one block of at most kJointBlock logits adds to a row's log-sum-exp.
struct ExponentialSum {
  float max = 0;   ///< the largest logit; -inf where none is above it
  double sum = 0;  ///< of exp(logit - max): each in float32, at least exp(-87)
};
/// `exponentials`: where they are to be kept, [logits], or null. Thread-safe.
ExponentialSum sum_exponentials(std::span<const float> logits, float* exponentials);
/// Adds blocks up in their order, in float64.
class ExponentialTotal {
 public:
  /// Adds the next block.
  void add(const ExponentialSum& block);
  /// Returns the log-sum-exp of what was added.
  double log() const;

 private:
  double max_ = 0, sum_ = 0;
};
/// log(sum(exp(logits))): that of the row's blocks.
double log_sum_exp(std::span<const float> logits);

}  // namespace vitrine
