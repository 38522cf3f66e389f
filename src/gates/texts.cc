// SPDX-License-Identifier: Apache-2.0
#include "gates/texts.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace vitrine::gates {

namespace {

constexpr double kHighFraction = 0.999, kConfidence = 0.95;

using Best = std::vector<std::pair<int32_t, float>>;

/// The most probable tokens, and the one that stands there: both sides know its probability.
Best with_token(const TextPosition& position) {
  Best best = position.best;
  const auto is_there = [&](const auto& entry) { return entry.first == position.token; };
  if (std::ranges::none_of(best, is_there)) best.emplace_back(position.token, position.logprob);
  return best;
}

PairedToken pair_positions(const TextPosition& before, const TextPosition& after) {
  PairedToken token;
  token.baseline_logprob = before.logprob;
  token.candidate_logprob = after.logprob;
  token.has_best = !before.best.empty() && !after.best.empty();
  if (token.has_best) {
    token.is_same_best = before.best.front().first == after.best.front().first;
    token.kl = top_divergence(with_token(before), with_token(after));
  }
  return token;
}

/// The position in its window, from 1, of a text's token that was predicted as number `i`: the
/// first of each window is not.
int64_t position_of(size_t i, int64_t window) {
  return window > 1 ? static_cast<int64_t>(i) % (window - 1) + 1 : static_cast<int64_t>(i) + 1;
}

void add_text(const ItemPair& pair, std::vector<PairedToken>& tokens) {
  if (!have_same_tokens(pair)) return;
  const auto &before = pair.before->positions, &after = pair.after->positions;
  for (size_t i = 0; i < before.size(); ++i) {
    try {
      tokens.push_back(pair_positions(before[i], after[i]));
    } catch (const Error& error) {
      throw Error(ErrorKind::kInvalidArgument, pair.before->task + "/" + pair.before->id +
                                                   ": token " + std::to_string(i + 1) + ": " +
                                                   error.what());
    }
    tokens.back().cluster = pair.cluster;
    tokens.back().item = pair.before;
    tokens.back().number = static_cast<int64_t>(i + 1);
    tokens.back().position = position_of(i, pair.window);
  }
}

template <typename Value>
ClusteredValues values_of(std::span<const PairedToken> tokens, const Value& value) {
  ClusteredValues values;
  for (const PairedToken& token : tokens) values.add(value(token), token.cluster);
  return values;
}

Estimate mean_of_values(const ClusteredValues& values) {
  return clustered_mean(values.values, values.clusters);
}

std::vector<TextBucket> position_buckets(std::span<const PairedToken> tokens) {
  std::vector<TextBucket> buckets;
  for (const PairedToken& token : tokens) {
    if (!token.has_best) continue;
    const auto number = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(token.position)));
    while (buckets.size() < number) {
      const int64_t first = int64_t{1} << buckets.size();
      buckets.push_back({first, 2 * first - 1, 0, 0, 0});
    }
    TextBucket& bucket = buckets[number - 1];
    ++bucket.count;
    bucket.kl += token.kl;
    bucket.agreement += token.is_same_best ? 1 : 0;
  }
  std::erase_if(buckets, [](const TextBucket& bucket) { return bucket.count == 0; });
  for (TextBucket& bucket : buckets) {
    bucket.kl /= static_cast<double>(bucket.count);
    bucket.agreement /= static_cast<double>(bucket.count);
  }
  return buckets;
}

}  // namespace

bool have_same_tokens(const ItemPair& pair) {
  return std::ranges::equal(pair.before->positions, pair.after->positions, {}, &TextPosition::token,
                            &TextPosition::token);
}

std::vector<PairedToken> paired_tokens(std::span<const ItemPair> pairs) {
  std::vector<PairedToken> tokens;
  for (const ItemPair& pair : pairs) add_text(pair, tokens);
  std::ranges::stable_sort(tokens, {}, &PairedToken::cluster);
  return tokens;
}

ClusteredValues divergences_of(std::span<const PairedToken> tokens) {
  ClusteredValues values;
  for (const PairedToken& token : tokens) {
    if (token.has_best) values.add(token.kl, token.cluster);
  }
  return values;
}

std::optional<TextComparison> compare_texts(std::span<const PairedToken> tokens) {
  if (tokens.empty()) return std::nullopt;
  TextComparison text;
  text.num_tokens = tokens.size();
  const EvaluatedItem* last = nullptr;
  double baseline = 0, candidate = 0;
  for (const PairedToken& token : tokens) {
    if (token.item != last) ++text.num_texts;
    last = token.item;
    baseline += token.baseline_logprob;
    candidate += token.candidate_logprob;
    const double drop = token.baseline_logprob - token.candidate_logprob;
    if (drop > text.largest_drop || text.largest_id.empty()) {
      text.largest_drop = drop;
      text.largest_id = token.item->task + "/" + token.item->id;
      text.largest_position = token.number;
    }
  }
  const auto count = static_cast<double>(tokens.size());
  text.baseline_perplexity = std::exp(-baseline / count);
  text.candidate_perplexity = std::exp(-candidate / count);
  text.logprob_drop = mean_of_values(values_of(tokens, [](const PairedToken& token) {
    return token.baseline_logprob - token.candidate_logprob;
  }));
  const ClusteredValues divergences = divergences_of(tokens);
  if (divergences.values.empty()) return text;
  text.kl = mean_of_values(divergences);
  text.kl_high = quantile(divergences.values, kHighFraction);
  text.kl_high_interval =
      quantile_interval(divergences.values, divergences.clusters, kHighFraction, kConfidence);
  ClusteredValues agreement;
  for (const PairedToken& token : tokens) {
    if (token.has_best) agreement.add(token.is_same_best ? 1 : 0, token.cluster);
  }
  text.agreement = mean_of_values(agreement);
  text.buckets = position_buckets(tokens);
  return text;
}

}  // namespace vitrine::gates
