// SPDX-License-Identifier: Apache-2.0
// vitrine audit stats.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "audit.h"
#include "hidden_values.h"

namespace cli {

namespace {

using vitrine::TokenRecord;

struct Statistics {
  size_t generated = 0, scored = 0;
  double logprob_sum = 0, entropy_sum = 0;
};

Statistics statistics_of(const Run& run) {
  Statistics statistics;
  for (const TokenRecord& record : run.records) {
    if (!record.has_prediction) continue;
    ++(record.prediction.generated ? statistics.generated : statistics.scored);
    if (!record.prediction.generated) continue;
    statistics.logprob_sum += static_cast<double>(record.prediction.logprob);
    statistics.entropy_sum += static_cast<double>(record.prediction.entropy);
  }
  return statistics;
}

uint64_t sum(const std::vector<uint64_t>& counts) {
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  return total;
}

/// Entropy of the use of a layer's experts over its largest possible value; none where none was
/// used.
std::optional<double> balance(const std::vector<uint64_t>& counts) {
  const auto total = static_cast<double>(sum(counts));
  if (total <= 0) return {};
  if (counts.size() < 2) return 1;
  double entropy = 0;
  for (const uint64_t count : counts) {
    const double share = static_cast<double>(count) / total;
    if (share > 0) entropy -= share * std::log(share);
  }
  return entropy / std::log(static_cast<double>(counts.size()));
}

/// True where nothing of a layer's use can be read although it has experts.
bool hides_uses(const Run& run, size_t layer) {
  const bool is_hidden = num_hidden_routes(run, layer) > 0 || hides_counters(run);
  return is_hidden && sum(run.uses[layer]) == 0 && !run.uses[layer].empty();
}

/// How far logits are from the sum of their terms, in logits and relative to the largest term.
struct Rounding {
  size_t count = 0;                              ///< attributed logits of generated tokens
  std::array<double, 3> absolute{}, relative{};  ///< median, 95 %, largest
};

/// Median, 95 % and largest: values that were there, none between two.
std::array<double, 3> spread(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](size_t percent) {  // the smallest that `percent` of the values do not exceed
    return values[(values.size() * percent + 99) / 100 - 1];
  };
  return {at(50), at(95), values.back()};
}

Rounding rounding_of(const Run& run) {
  std::vector<double> absolute, relative;
  for (const vitrine::TokenRecord& record : run.records) {
    if (!record.has_prediction || !record.prediction.generated) continue;
    for (const vitrine::AttributionRecord* attribution : attributions_of(record.prediction)) {
      double largest = 0;
      for (const vitrine::TermRecord& term : attribution->terms) {
        largest = std::max(largest, std::abs(double{term.value}));
      }
      const double rounding = std::abs(double{attribution->rounding});
      if (!(largest > 0) || !std::isfinite(rounding / largest)) continue;
      absolute.push_back(rounding);
      relative.push_back(rounding / largest);
    }
  }
  return {absolute.size(), spread(absolute), spread(relative)};
}

nlohmann::ordered_json spread_json(const std::array<double, 3>& values) {
  return {{"median", values[0]}, {"p95", values[1]}, {"max", values[2]}};
}

/// Holds what the command tells of a run.
struct RunFacts {
  const Run& run;
  const Statistics statistics;
  const Rounding rounding;
  const uint64_t bytes, positions;

  explicit RunFacts(const Run& of, uint64_t file_bytes)
      : run(of),
        statistics(statistics_of(of)),
        rounding(rounding_of(of)),
        bytes(file_bytes),
        positions(of.report ? of.report->counts.positions.total() : of.records.size()) {}
  double bytes_per_token() const {
    return positions == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(positions);
  }
  /// Returns the mean of a sum over the generated predictions that can be read.
  double mean(double sum) const {
    return sum / static_cast<double>(std::max<size_t>(statistics.generated, 1));
  }
};

nlohmann::ordered_json layers_json(const Run& run) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (size_t layer = 0; layer < run.uses.size(); ++layer) {
    nlohmann::ordered_json one = {
        {"layer", run.layer_numbers[layer]}, {"uses", run.uses[layer]}, {"balance", nullptr}};
    if (const auto value = balance(run.uses[layer])) one["balance"] = *value;
    const size_t hidden = num_hidden_routes(run, layer);
    if (hides_uses(run, layer)) one["uses"] = nullptr;
    if (hidden > 0) one["records_left_out"] = hidden;
    layers.push_back(std::move(one));
  }
  return layers;
}

nlohmann::ordered_json stats_json(const RunFacts& facts) {
  const Run& run = facts.run;
  const auto mean = [&](double sum) {
    return facts.statistics.generated == 0 ? nlohmann::ordered_json(nullptr)
                                           : nlohmann::ordered_json(facts.mean(sum));
  };
  const auto [generated, scored] = counted_predictions(run);
  nlohmann::ordered_json json = {{"records", run.records.size()},
                                 {"positions", facts.positions},
                                 {"generated", generated},
                                 {"scored", scored},
                                 {"mean_logprob", mean(facts.statistics.logprob_sum)},
                                 {"mean_entropy", mean(facts.statistics.entropy_sum)},
                                 {"bytes", facts.bytes},
                                 {"bytes_per_token", facts.bytes_per_token()}};
  if (!is_complete(run)) json["account"] = account_line(run);
  if (hides_predictions(run)) json["generated_readable"] = facts.statistics.generated;
  if (facts.rounding.count > 0) {
    json["rounding"] = {{"tokens", facts.rounding.count},
                        {"logit", spread_json(facts.rounding.absolute)},
                        {"of_largest_term", spread_json(facts.rounding.relative)}};
  }
  json["layers"] = layers_json(run);
  return json;
}

std::string rounding_text(const Rounding& rounding) {
  if (rounding.count == 0) return "";
  const std::array<double, 3>&absolute = rounding.absolute, &relative = rounding.relative;
  return fmt::format(
      "rounding of {} attributed logits: median {:.2g}, 95 % {:.2g}, max {:.2g}; of the largest "
      "term {:.2g} %, {:.2g} %, {:.2g} %\n",
      rounding.count, absolute[0], absolute[1], absolute[2], 100 * relative[0], 100 * relative[1],
      100 * relative[2]);
}

std::string layer_text(const Run& run, size_t layer) {
  const std::vector<uint64_t>& uses = run.uses[layer];
  const std::string name = fmt::format("layer {:<3} ", run.layer_numbers[layer]);
  if (uses.empty()) return name + "dense\n";
  if (hides_uses(run, layer)) return name + "left out or encrypted\n";
  const std::optional<double> use = balance(uses);
  if (!use) return name + "not used\n";
  const uint64_t total = sum(uses);
  std::vector<size_t> order(uses.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return uses[a] > uses[b]; });
  std::string text = name + fmt::format("balance {:.3f}  ", *use);
  for (size_t i = 0; i < std::min<size_t>(order.size(), 8); ++i) {
    text += fmt::format(" {}:{:.1f}%", order[i],
                        100 * static_cast<double>(uses[order[i]]) / static_cast<double>(total));
  }
  if (order.size() > 8) text += " …";
  const size_t hidden = num_hidden_routes(run, layer);
  return text +
         (hidden == 0 ? "\n" : fmt::format("  (without {} records that hide theirs)\n", hidden));
}

std::string stats_text(const RunFacts& facts) {
  const Run& run = facts.run;
  const auto [generated, scored] = counted_predictions(run);
  std::string text = account_line(run) + "\n" + hidden_line(run);
  text += fmt::format("{} records, {} generated, {} scored; {} ({:.1f} bytes a position)\n",
                      run.records.size(), generated, scored, format_bytes(facts.bytes),
                      facts.bytes_per_token());
  if (hides_predictions(run)) {
    text += fmt::format(
        "predictions were left out or are encrypted: of the generated ones {} can be read\n",
        facts.statistics.generated);
  }
  if (hides_counters(run)) text += "counters of pages were left out or are encrypted\n";
  if (facts.statistics.generated > 0) {
    text += fmt::format("generated: mean log-probability {:.4f} nats, mean entropy {:.4f} nats\n",
                        facts.mean(facts.statistics.logprob_sum),
                        facts.mean(facts.statistics.entropy_sum));
  }
  text += rounding_text(facts.rounding);
  for (size_t layer = 0; layer < run.uses.size(); ++layer) text += layer_text(run, layer);
  return text;
}

}  // namespace

int run_audit_stats(const AuditArguments& arguments) {
  const Run run = load_run(arguments.run, "", arguments.decrypt, arguments.most_bytes);
  const RunFacts facts(run, std::filesystem::file_size(arguments.run));
  if (arguments.json) {
    write_json(stats_json(facts));
  } else {
    write_out(stats_text(facts));
  }
  return 0;
}

}  // namespace cli
