// SPDX-License-Identifier: Apache-2.0
// Private to the library: what items tell that is more than right or wrong.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "gates/pairing.h"

namespace vitrine::gates {

/// What an item says of itself, or nothing.
using ItemValue = std::optional<double> (*)(const EvaluatedItem& item);

/// EvaluatedItem::score.
std::optional<double> score_of(const EvaluatedItem& item);
/// Nats a token of the reference answer.
std::optional<double> reference_of(const EvaluatedItem& item);
/// Nats by which the right choice leads the best wrong one.
std::optional<double> margin_of(const EvaluatedItem& item);
/// The probability of the right choice among all choices.
std::optional<double> right_probability_of(const EvaluatedItem& item);
/// The probability of the choice that was made; nothing where a task chose otherwise than by these
/// probabilities.
std::optional<double> chosen_probability_of(const EvaluatedItem& item);
/// From 0 to 1: the probability of the right choice, or the mean (geometric) probability of the
/// reference answer's tokens.
std::optional<double> sureness_of(const EvaluatedItem& item);
/// Seconds to the first token of an answer.
std::optional<double> first_token_seconds_of(const EvaluatedItem& item);
/// Seconds between two tokens of an answer, on average.
std::optional<double> token_seconds_of(const EvaluatedItem& item);

/// Values that both sides of items have, in the items' order.
struct PairedValues {
  std::vector<double> before, after;
  std::vector<size_t> clusters;
};
void add_values(std::span<const ItemPair> pairs, ItemValue value, PairedValues& values);

/// Nothing where there are no values.
std::optional<PairedScore> compare_scores(const PairedValues& values);
std::optional<PairedRatio> compare_durations(const PairedValues& values, double confidence);

}  // namespace vitrine::gates
