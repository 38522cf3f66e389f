// SPDX-License-Identifier: Apache-2.0
// The room `quality`: how sure one can be of what was measured, of one model or of two on the same
// items. All functions are pure and thread-safe, and throw kInvalidArgument for a confidence, power
// or fraction out of range.
//
//     const PairedAnswers answers = compare_answers(baseline_is_right, candidate_is_right);
//     if (answers.drop_interval(0.95).upper < 0.01) use(answers);  // at most a point was lost
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// Two bounds, each of which holds by itself with the confidence that was asked for: both of 0.95
/// hold together with 0.9. A bound that the data do not give is infinite or NaN.
struct Interval {
  double lower = 0;  ///< the lower one
  double upper = 0;  ///< the upper one
};

// ---- Distributions -----------------------------------------------------------------------------

/// Returns the value below which a standard normal variable lies with a probability above 0 and
/// below 1.
VITRINE_API double normal_quantile(double probability);
/// Returns that value of Student's t with so many degrees of freedom (above 0; Student 1908).
VITRINE_API double student_quantile(double probability, double degrees_of_freedom);
/// Returns the probability of at least so many successes in so many trials. Numbers need not be
/// whole (the regularized incomplete beta function, DLMF 8.17). Throws kInvalidArgument for
/// negative ones and for more successes than trials.
VITRINE_API double binomial_at_least(double successes, double trials, double probability);
/// Returns bounds of a probability by Clopper and Pearson (1934): exact, so never too narrow.
/// Throws as binomial_at_least().
VITRINE_API Interval binomial_interval(double successes, double trials, double confidence);

// ---- Means -------------------------------------------------------------------------------------

/// A mean, and how sure it is.
struct VITRINE_API Estimate {
  double mean = 0;  ///< of the values
  /// Standard error of the mean where clusters were drawn at random, and not single values: values
  /// of a cluster may hang together (the ratio estimator's, Cochran, Sampling Techniques, 1977,
  /// 9.1). NaN for fewer than two clusters.
  double standard_error = 0;
  size_t num_clusters = 0;  ///< that were drawn
  /// Returns bounds of the true mean by Student's t with num_clusters - 1 degrees of freedom; NaN
  /// for fewer than two clusters.
  Interval interval(double confidence) const;
  /// Returns the p-value of the one-sided t-test that the true mean is at most `bound`; NaN for
  /// fewer than two clusters.
  double p_above(double bound) const;
};

/// Returns the mean of values and its standard error. `clusters`: [values] which cluster each value
/// is in; those of one cluster stand side by side. Throws kInvalidArgument for no values, or where
/// the two lists differ in length.
VITRINE_API Estimate clustered_mean(std::span<const double> values,
                                    std::span<const size_t> clusters);
/// Returns the mean of second[i] - first[i] and its standard error, for two measurements of each
/// thing. It is far surer than the difference of two means where both go up and down together.
/// Throws as clustered_mean() does.
VITRINE_API Estimate paired_difference(std::span<const double> first,
                                       std::span<const double> second,
                                       std::span<const size_t> clusters);

// ---- Quantiles ---------------------------------------------------------------------------------

/// Returns the value below which a fraction (0 to 1) of the values lies, interpolated between two
/// of them; NaN for no values. Throws kInvalidArgument for a fraction out of range.
VITRINE_API double quantile(std::span<const double> values, double fraction);
/// Returns bounds of a quantile that are values themselves (order statistics, without any
/// assumption of how values are spread; David and Nagaraja, Order Statistics, 2003, 7.1), infinite
/// where there are too few. Values of a cluster may hang together: they count for as many as their
/// spread over clusters says (Korn and Graubard 1998). Throws as clustered_mean() does.
VITRINE_API Interval quantile_interval(std::span<const double> values,
                                       std::span<const size_t> clusters, double fraction,
                                       double confidence);
/// Returns the p-value of the one-sided test that the quantile is at most `bound`: more values lie
/// above it than chance puts there. Throws as clustered_mean() does.
VITRINE_API double quantile_p_above(std::span<const double> values,
                                    std::span<const size_t> clusters, double fraction,
                                    double bound);

/// Durations of two sides, measured in pairs.
struct VITRINE_API PairedRatio {
  double ratio = 0;      ///< the median of second[i] / first[i]
  Interval interval;     ///< of it, by order statistics
  double medians = 0;    ///< the second's median over the first's
  size_t num_pairs = 0;  ///< that were measured
};
/// Compares durations, all above 0. Throws kInvalidArgument for others, none, and where the two
/// lists differ in length.
VITRINE_API PairedRatio paired_ratio(std::span<const double> first, std::span<const double> second,
                                     double confidence);

// ---- Right and wrong ---------------------------------------------------------------------------

/// Answers of two models to the same questions, each right or wrong.
struct VITRINE_API PairedAnswers {
  int64_t both = 0;         ///< questions that both answer rightly
  int64_t first_only = 0;   ///< questions that the first model alone answers rightly
  int64_t second_only = 0;  ///< questions that the second model alone answers rightly
  int64_t neither = 0;      ///< questions that neither answers rightly
  /// Returns how many questions there are.
  int64_t total() const { return both + first_only + second_only + neither; }
  /// Returns the share of questions that the first answers rightly less the second's; NaN for none.
  double drop() const;
  /// Returns how probable a split of the differing answers is that is at least so uneven, where
  /// neither model is better: the exact two-sided test of McNemar (1947).
  double p_value() const;
  /// Returns how probable it is that the first alone is right at least so often, where the second
  /// is no worse: the exact one-sided test (over pooled tasks as in arXiv 2602.10144).
  double p_worse() const;
  /// Returns bounds of the true drop(): Tango's score interval (1998), and where the second alone
  /// is right nowhere (the first, for the lower bound) not narrower than Clopper and Pearson's for
  /// what was lost, because the score's is too sure of the rarest flips. 299 questions without a
  /// flip give an upper bound below 0.01. NaN for no questions.
  Interval drop_interval(double confidence) const;
};
/// Counts the answers. Throws kInvalidArgument where the two lists differ in length.
VITRINE_API PairedAnswers compare_answers(std::span<const uint8_t> first_is_right,
                                          std::span<const uint8_t> second_is_right);

// ---- Decisions ---------------------------------------------------------------------------------

/// Returns p-values as they are to be read where so many tests were made at once: below `alpha`
/// with a probability of at most `alpha` for all true null hypotheses together (Holm 1979). NaN
/// stands for a test that was not made.
VITRINE_API std::vector<double> holm_p_values(std::span<const double> p_values);

/// Returns how many items it takes to show a drop below `margin` (above 0, below 1) with `power`,
/// where none is there and a share `flips` of the items comes out differently: by the normal
/// approximation with the variance that PairedAnswers::drop_interval() takes at the margin (as in
/// Connor 1987; with the variance where nothing is lost, (z(confidence) + z(power))^2 flips /
/// margin^2, power would be less than promised), and no fewer than the exact log(1 - confidence) /
/// log(1 - margin) that items without a flip take.
VITRINE_API int64_t items_to_decide(double flips, double margin, double confidence = 0.95,
                                    double power = 0.8);

// ---- Probabilities -----------------------------------------------------------------------------

/// How often statements are true that were made with about the same probability.
struct ReliabilityBin {
  double lower = 0;        ///< probabilities above it (the first bin: from it) ...
  double upper = 0;        ///< ... up to this
  size_t count = 0;        ///< statements
  double probability = 0;  ///< their mean; 0 for none
  double share_right = 0;  ///< of them, which were true; 0 for none
};
/// Whether probabilities mean what they say.
struct Calibration {
  size_t count = 0;  ///< statements
  /// The mean distance of a bin's probability from its share, weighted by its count (expected
  /// calibration error, Naeini et al. 2015).
  double expected_error = 0;
  double brier = 0;  ///< mean squared distance of the probability from 0 or 1 (Brier 1950)
  std::vector<ReliabilityBin> bins = {};  ///< of equal width
};
/// Compares probabilities with what came true. Throws kInvalidArgument for no bins, probabilities
/// outside 0 to 1, and where the two lists differ in length.
VITRINE_API Calibration calibrate(std::span<const double> probabilities,
                                  std::span<const uint8_t> is_right, size_t bins = 10);

/// Returns KL(first || second), nats, of what is known by two lists of the most probable tokens (id
/// and nats) alone: each id that stands in both is a cell, and all others are one together. It is
/// at most the whole divergence (the data processing inequality; Cover and Thomas, Elements of
/// Information Theory, 2.8), and equal to it where the lists are whole. Throws kInvalidArgument for
/// an id that stands twice, NaN, and log-probabilities that add up to more than 1 (by 1e-3).
VITRINE_API double top_divergence(std::span<const std::pair<int32_t, float>> first,
                                  std::span<const std::pair<int32_t, float>> second);

}  // namespace vitrine
