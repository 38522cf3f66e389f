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

}  // namespace

int run_audit_stats(const AuditArguments& arguments) {
  const Run run = load_run(arguments.run, "", arguments.decrypt, arguments.most_bytes);
  const Statistics statistics = statistics_of(run);
  const Rounding rounding = rounding_of(run);
  const auto count = static_cast<double>(std::max<size_t>(statistics.generated, 1));
  const uint64_t bytes = std::filesystem::file_size(arguments.run);
  const uint64_t positions = run.report ? run.report->counts.positions.total() : run.records.size();
  const double bytes_per_token =
      positions == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(positions);
  const auto [generated, scored] = counted_predictions(run);
  const bool has_hidden = hides_predictions(run);
  if (arguments.json) {
    const auto mean = [&](double sum) {  // of what can be read
      return statistics.generated == 0 ? nlohmann::ordered_json(nullptr)
                                       : nlohmann::ordered_json(sum / count);
    };
    nlohmann::ordered_json json = {{"records", run.records.size()},
                                   {"positions", positions},
                                   {"generated", generated},
                                   {"scored", scored},
                                   {"mean_logprob", mean(statistics.logprob_sum)},
                                   {"mean_entropy", mean(statistics.entropy_sum)},
                                   {"bytes", bytes},
                                   {"bytes_per_token", bytes_per_token}};
    if (!is_complete(run)) json["account"] = account_line(run);
    if (has_hidden) json["generated_readable"] = statistics.generated;
    if (rounding.count > 0) {
      const auto names = [](const std::array<double, 3>& values) {
        return nlohmann::ordered_json{
            {"median", values[0]}, {"p95", values[1]}, {"max", values[2]}};
      };
      json["rounding"] = {{"tokens", rounding.count},
                          {"logit", names(rounding.absolute)},
                          {"of_largest_term", names(rounding.relative)}};
    }
    json["layers"] = nlohmann::ordered_json::array();
    for (size_t layer = 0; layer < run.uses.size(); ++layer) {
      nlohmann::ordered_json one = {
          {"layer", run.layer_numbers[layer]}, {"uses", run.uses[layer]}, {"balance", nullptr}};
      if (const auto value = balance(run.uses[layer])) one["balance"] = *value;
      const size_t hidden = num_hidden_routes(run, layer);
      if (hides_uses(run, layer)) one["uses"] = nullptr;
      if (hidden > 0) one["records_left_out"] = hidden;
      json["layers"].push_back(std::move(one));
    }
    write_json(json);
    return 0;
  }
  std::string text = account_line(run) + "\n" + hidden_line(run);
  text += fmt::format("{} records, {} generated, {} scored; {} ({:.1f} bytes a position)\n",
                      run.records.size(), generated, scored, format_bytes(bytes), bytes_per_token);
  if (has_hidden) {
    text += fmt::format(
        "predictions were left out or are encrypted: of the generated ones {} can be read\n",
        statistics.generated);
  }
  if (hides_counters(run)) text += "counters of pages were left out or are encrypted\n";
  if (statistics.generated > 0) {
    text += fmt::format("generated: mean log-probability {:.4f} nats, mean entropy {:.4f} nats\n",
                        statistics.logprob_sum / count, statistics.entropy_sum / count);
  }
  if (rounding.count > 0) {
    const std::array<double, 3>&absolute = rounding.absolute, &relative = rounding.relative;
    text += fmt::format(
        "rounding of {} attributed logits: median {:.2g}, 95 % {:.2g}, max {:.2g}; of the largest "
        "term {:.2g} %, {:.2g} %, {:.2g} %\n",
        rounding.count, absolute[0], absolute[1], absolute[2], 100 * relative[0], 100 * relative[1],
        100 * relative[2]);
  }
  for (size_t layer = 0; layer < run.uses.size(); ++layer) {
    const uint64_t total = sum(run.uses[layer]);
    if (run.uses[layer].empty()) {
      text += fmt::format("layer {:<3} dense\n", run.layer_numbers[layer]);
      continue;
    }
    if (hides_uses(run, layer)) {
      text += fmt::format("layer {:<3} left out or encrypted\n", run.layer_numbers[layer]);
      continue;
    }
    const std::optional<double> use = balance(run.uses[layer]);
    if (!use) {
      text += fmt::format("layer {:<3} not used\n", run.layer_numbers[layer]);
      continue;
    }
    std::vector<size_t> order(run.uses[layer].size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return run.uses[layer][a] > run.uses[layer][b]; });
    text += fmt::format("layer {:<3} balance {:.3f}  ", run.layer_numbers[layer], *use);
    for (size_t i = 0; i < std::min<size_t>(order.size(), 8); ++i) {
      text += fmt::format(
          " {}:{:.1f}%", order[i],
          100 * static_cast<double>(run.uses[layer][order[i]]) / static_cast<double>(total));
    }
    if (order.size() > 8) text += " …";
    const size_t hidden = num_hidden_routes(run, layer);
    text += hidden == 0 ? "\n" : fmt::format("  (without {} records that hide theirs)\n", hidden);
  }
  write_out(text);
  return 0;
}

}  // namespace cli
