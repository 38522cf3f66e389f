// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gates/metric.h"
#include "gates/texts.h"

namespace vitrine::gates {

namespace {

constexpr double kHigh = 0.999;

std::vector<PairedToken> tokens_in(const MetricInput& input) {
  std::vector<ItemPair> pairs;
  for (const PairedTask* task : input.tasks) {
    pairs.insert(pairs.end(), task->pairs.begin(), task->pairs.end());
  }
  return paired_tokens(pairs);
}

Measured no_texts() {
  return not_measured("no text in scope whose most probable tokens both sides tell");
}

Measured measure_kl_mean(const MetricInput& input) {
  const ClusteredValues values = divergences_of(tokens_in(input));
  if (values.values.empty()) return no_texts();
  return measure_mean(clustered_mean(values.values, values.clusters), values.values.size(), input);
}

double fraction_of(const GateRule& rule) {
  const auto found = rule.options.find("quantile");
  return found == rule.options.end() ? kHigh : found->second;
}

std::string check_divergence(const GateRule& rule) {
  if (rule.bound > 0 || rule.times_noise > 0) return {};
  return "'bound' is " + std::to_string(rule.bound) + "; expected nats above 0";
}

std::string check_quantile(const GateRule& rule) {
  const double fraction = fraction_of(rule);
  if (fraction > 0 && fraction < 1) return check_divergence(rule);
  return "'quantile' is " + std::to_string(fraction) + "; expected above 0 and below 1";
}

Measured measure_kl_quantile(const MetricInput& input) {
  const ClusteredValues values = divergences_of(tokens_in(input));
  if (values.values.empty()) return no_texts();
  const double fraction = fraction_of(input.rule);
  Measured measured;
  measured.num_items = values.values.size();
  measured.found = quantile(values.values, fraction);
  measured.interval = quantile_interval(values.values, values.clusters, fraction, input.confidence);
  measured.p_worse = quantile_p_above(values.values, values.clusters, fraction, input.rule.bound);
  // Without a token above the bound, that many have to be seen.
  measured.needed = items_to_decide(0, 1 - fraction, input.confidence);
  if (*measured.needed <= static_cast<int64_t>(measured.num_items)) measured.needed.reset();
  return measured;
}

Measured measure_disagreement(const MetricInput& input) {
  ClusteredValues values;
  for (const PairedToken& token : tokens_in(input)) {
    if (token.has_best) values.add(token.is_same_best ? 0 : 1, token.cluster);
  }
  if (values.values.empty()) return no_texts();
  return measure_mean(clustered_mean(values.values, values.clusters), values.values.size(), input);
}

Measured measure_text_drop(const MetricInput& input) {
  ClusteredValues values;
  for (const PairedToken& token : tokens_in(input)) {
    values.add(token.baseline_logprob - token.candidate_logprob, token.cluster);
  }
  if (values.values.empty()) return not_measured("no text in scope");
  return measure_mean(clustered_mean(values.values, values.clusters), values.values.size(), input);
}

VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "kl_mean",
                                        .unit = "nats",
                                        .about = "KL(baseline || candidate) a token of texts, of "
                                                 "what both lists of the most probable tell",
                                        .things = "tokens"},
                              .measure = measure_kl_mean,
                              .check = check_divergence});
VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "kl_quantile",
                                        .unit = "nats",
                                        .about = "a quantile of that divergence over tokens",
                                        .things = "tokens",
                                        .options = {"quantile"}},
                              .measure = measure_kl_quantile,
                              .check = check_quantile});
VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "top_disagreement",
                                        .unit = "share",
                                        .about = "share of tokens of texts before which the most "
                                                 "probable token is another one",
                                        .things = "tokens"},
                              .measure = measure_disagreement});
VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "text_drop",
                                        .unit = "nats",
                                        .about = "log-probability a token of texts, the baseline's "
                                                 "less the candidate's: of log perplexity",
                                        .things = "tokens"},
                              .measure = measure_text_drop});

}  // namespace

}  // namespace vitrine::gates
