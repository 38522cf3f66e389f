// vitrine audit stats, diff.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "audit.h"

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

/// Entropy of the use of a layer's experts over its largest possible value.
double balance(const std::vector<uint64_t>& counts) {
  const auto total = static_cast<double>(sum(counts));
  if (total <= 0 || counts.size() < 2) return 1;
  double entropy = 0;
  for (const uint64_t count : counts) {
    const double share = static_cast<double>(count) / total;
    if (share > 0) entropy -= share * std::log(share);
  }
  return entropy / std::log(static_cast<double>(counts.size()));
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

/// A sequence's records by order, so that two runs with other sequence numbers compare.
std::vector<std::vector<size_t>> by_sequence(const Run& run) {
  std::map<uint64_t, size_t> order;
  std::vector<std::vector<size_t>> sequences;
  for (size_t i = 0; i < run.records.size(); ++i) {
    const auto [found, is_new] = order.emplace(run.records[i].sequence, sequences.size());
    if (is_new) sequences.emplace_back();
    sequences[found->second].push_back(i);
  }
  return sequences;
}

/// The marks of two records whose digests differ, where a log has rounded values.
MarkPair marks_of(const Run& a, size_t left, const Run& b, size_t right) {
  if (a.digests.empty() || b.digests.empty() || a.digests[left] == b.digests[right]) return {};
  if (a.level == "full" && b.level == "full") return {};
  const auto marks = [](const Run& run, size_t index) {
    if (run.level != "full") return run.layer_marks[index];
    return run.is_redacted[index] ? std::vector<vitrine::LayerMark>()
                                  : vitrine::layer_marks(run.records[index]);
  };
  return {marks(a, left), marks(b, right)};
}

}  // namespace

int run_audit_stats(const AuditArguments& arguments) {
  const Run run = load_run(arguments.run, "", arguments.decrypt);
  const Statistics statistics = statistics_of(run);
  const Rounding rounding = rounding_of(run);
  const auto count = static_cast<double>(std::max<size_t>(statistics.generated, 1));
  const uint64_t bytes = std::filesystem::file_size(arguments.run);
  const uint64_t positions = run.report ? run.report->counts.positions.total() : run.records.size();
  const double bytes_per_token =
      positions == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(positions);
  if (arguments.json) {
    nlohmann::ordered_json json = {{"records", run.records.size()},
                                   {"positions", positions},
                                   {"generated", statistics.generated},
                                   {"scored", statistics.scored},
                                   {"mean_logprob", statistics.logprob_sum / count},
                                   {"mean_entropy", statistics.entropy_sum / count},
                                   {"bytes", bytes},
                                   {"bytes_per_token", bytes_per_token}};
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
      json["layers"].push_back({{"layer", run.layer_numbers[layer]},
                                {"uses", run.uses[layer]},
                                {"balance", balance(run.uses[layer])}});
    }
    write_json(json);
    return 0;
  }
  std::string text = account_line(run) + "\n" + hidden_line(run);
  text += fmt::format("{} records, {} generated, {} scored; {} ({:.1f} bytes a position)\n",
                      run.records.size(), statistics.generated, statistics.scored,
                      format_bytes(bytes), bytes_per_token);
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
    std::vector<size_t> order(run.uses[layer].size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return run.uses[layer][a] > run.uses[layer][b]; });
    text += fmt::format("layer {:<3} balance {:.3f}  ", run.layer_numbers[layer],
                        balance(run.uses[layer]));
    for (size_t i = 0; i < std::min<size_t>(order.size(), 8); ++i) {
      text += fmt::format(" {}:{:.1f}%", order[i],
                          total == 0 ? 0.0
                                     : 100 * static_cast<double>(run.uses[layer][order[i]]) /
                                           static_cast<double>(total));
    }
    text += order.size() > 8 ? " …\n" : "\n";
  }
  write_out(text);
  return 0;
}

int run_audit_diff(const AuditArguments& arguments) {
  const Run a = load_run(arguments.run, arguments.model, arguments.decrypt);
  const Run b = load_run(arguments.other, arguments.model, arguments.decrypt);
  require_records(a);
  require_records(b);
  // Rounded values differ by up to one half in the last of 8 bits (norms), or 11.
  const bool is_rounded =
      (a.report && a.level == "standard") != (b.report && b.level == "standard");
  const double tolerance = is_rounded ? 0.005 : 0;
  const bool has_digests = !a.digests.empty() && !b.digests.empty();
  const auto sequences_a = by_sequence(a), sequences_b = by_sequence(b);
  std::string warnings;
  for (const Run* run : {&a, &b}) {
    if (!is_complete(*run)) warnings += fmt::format("{}: {}\n", run->path, account_line(*run));
  }
  if (sequences_a.size() != sequences_b.size()) {
    write_out(warnings + fmt::format("{} sequences with records and {}\n", sequences_a.size(),
                                     sequences_b.size()));
    return 1;
  }
  size_t num_equal = 0, num_different = 0;
  std::string first;
  for (size_t sequence = 0; sequence < sequences_a.size(); ++sequence) {
    const std::vector<size_t>&x = sequences_a[sequence], &y = sequences_b[sequence];
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      const TokenRecord &left = a.records[x[i]], &right = b.records[y[i]];
      const auto difference =
          find_difference(a, left, right, tolerance, false, marks_of(a, x[i], b, y[i]));
      std::string what = difference ? difference->text() : "";
      if (what.empty() && has_digests && a.digests[x[i]] != b.digests[y[i]]) {
        what = "unrounded values (their digests)";
      }
      ++(what.empty() ? num_equal : num_different);
      if (!what.empty() && first.empty()) {
        first = fmt::format("first difference: sequence {}, position {}: {}\n", left.sequence,
                            left.position, what);
      }
    }
    if (x.size() == y.size()) continue;
    num_different += std::max(x.size(), y.size()) - std::min(x.size(), y.size());
    if (first.empty()) {
      first = fmt::format("first difference: sequence {}: {} records and {}\n",
                          a.records[x.front()].sequence, x.size(), y.size());
    }
  }
  const char* how = has_digests  ? "to the last bit (digests)"
                    : is_rounded ? "up to the rounding of level standard"
                                 : "in every value";
  write_out(warnings + first +
            fmt::format("{} records equal {}, {} different\n", num_equal, how, num_different));
  return num_different == 0 ? 0 : 1;
}

}  // namespace cli
