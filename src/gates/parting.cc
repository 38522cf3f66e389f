// SPDX-License-Identifier: Apache-2.0
#include "vitrine/parting.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <vector>

namespace vitrine {

namespace {

/// What rounding makes of equal values in a log of level standard: norms are bfloat16, the others
/// binary16 (docs/vtr-format.md), and either may be rounded away from the other.
constexpr double kNormRounding = 1.0 / 128, kHalfRounding = 1.0 / 1024;

double rounding_of(PartingProbe probe) {
  switch (probe) {
    case PartingProbe::kResidual:
    case PartingProbe::kExpertOutput: return kNormRounding;
    case PartingProbe::kRouting: return kHalfRounding;
    case PartingProbe::kLogprob: break;
  }
  return 16 * kHalfRounding;  // nats, of log-probabilities around -16 at most
}

/// A log's records by position. Of a position that stands there twice (a preempted answer) the
/// first one counts.
struct ItemRun {
  std::vector<TokenRecord> records;  // ascending, gaps left out
  int64_t prompt_tokens = 0;         // positions before the first generated token
};

ItemRun read_run(const std::string& path, const std::optional<SealKey>& reader) {
  VtrReader log(path, reader);
  std::map<int64_t, TokenRecord> by_position;
  VtrPage page;
  while (log.next(page)) {
    for (TokenRecord& record : page.records)
      by_position.try_emplace(record.position, std::move(record));
  }
  ItemRun run;
  bool has_generated = false;
  for (auto& [position, record] : by_position) {
    if (!has_generated) run.prompt_tokens = position + 1;
    has_generated = has_generated || (record.has_prediction && record.prediction.generated);
    run.records.push_back(std::move(record));
  }
  return run;
}

double relative(float a, float b) {
  if (a == b) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::fabs(double{a} - double{b}) / std::max({std::fabs(a), std::fabs(b), 1e-6f});
}

struct Difference {
  double value = 0;
  int32_t expert = -1;
};

double weight_of(const std::vector<RouteRecord>& routes, int32_t expert) {
  const auto found = std::ranges::find(routes, expert, &RouteRecord::expert);
  return found == routes.end() ? 0 : double{found->weight};
}

/// How much of the gate weights went to other experts, and the expert with the largest change.
Difference routing_difference(const LayerRecord& a, const LayerRecord& b) {
  double sum = 0, total = 0, largest = 0;
  Difference found;
  const auto add = [&](int32_t expert, double change) {
    sum += change;
    if (change > largest) largest = change, found.expert = expert;
  };
  for (const RouteRecord& route : a.routes) {
    total += std::fabs(double{route.weight});
    add(route.expert, std::fabs(route.weight - weight_of(b.routes, route.expert)));
  }
  for (const RouteRecord& route : b.routes) {
    if (std::ranges::find(a.routes, route.expert, &RouteRecord::expert) == a.routes.end()) {
      add(route.expert, std::fabs(double{route.weight}));
    }
  }
  found.value = total > 0 ? sum / (2 * total) : 0;
  return found;
}

/// The largest change of what an expert gave, of those that both runs asked.
Difference output_difference(const LayerRecord& a, const LayerRecord& b) {
  Difference found;
  for (size_t i = 0; i < std::min(a.expert_norms.size(), a.routes.size()); ++i) {
    const auto other = std::ranges::find(b.routes, a.routes[i].expert, &RouteRecord::expert);
    const auto at = static_cast<size_t>(other - b.routes.begin());
    if (at >= b.expert_norms.size()) continue;
    const double change = relative(a.expert_norms[i], b.expert_norms[at]);
    if (change > found.value) found = {change, a.routes[i].expert};
  }
  return found;
}

using OnDifference =
    std::function<bool(int32_t layer, PartingProbe probe, const Difference& difference)>;

/// Tells each probe of two records in the order of computation, until `on_difference` says false.
bool compare_records(const TokenRecord& a, const TokenRecord& b,
                     const OnDifference& on_difference) {
  for (size_t i = 0; i < std::min(a.layers.size(), b.layers.size()); ++i) {
    const LayerRecord &left = a.layers[i], &right = b.layers[i];
    const Difference residual{relative(left.residual_norm, right.residual_norm), -1};
    if (!on_difference(left.layer, PartingProbe::kResidual, residual)) return false;
    if (left.routes.empty()) continue;
    if (!on_difference(left.layer, PartingProbe::kRouting, routing_difference(left, right)) ||
        !on_difference(left.layer, PartingProbe::kExpertOutput, output_difference(left, right))) {
      return false;
    }
  }
  if (!a.has_prediction || !b.has_prediction) return true;
  if (a.prediction.token != b.prediction.token) return true;
  const Difference logprob{std::fabs(double{a.prediction.logprob} - double{b.prediction.logprob}),
                           -1};
  return on_difference(-1, PartingProbe::kLogprob, logprob);
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

std::string_view parting_probe_name(PartingProbe probe) {
  constexpr std::array<std::string_view, 4> kNames = {"residual norm", "routing", "expert output",
                                                      "log-probability"};
  return kNames[static_cast<size_t>(probe)];
}

double NoiseLevels::level(int32_t layer, PartingProbe probe) const {
  const auto found = largest_.find({layer, probe});
  return std::max(rounding_of(probe), found == largest_.end() ? 0 : found->second);
}

void NoiseLevels::raise(int32_t layer, PartingProbe probe, double difference) {
  double& level = largest_[{layer, probe}];
  level = std::max(level, difference);
}

void NoiseLevels::add(const std::string& baseline_log, const std::string& perturbed_log,
                      const std::optional<SealKey>& reader) {
  const ItemRun a = read_run(baseline_log, reader), b = read_run(perturbed_log, reader);
  ++num_runs_;
  for (size_t i = 0; i < std::min(a.records.size(), b.records.size()); ++i) {
    if (a.records[i].position != b.records[i].position ||
        a.records[i].token != b.records[i].token) {
      return;
    }
    compare_records(a.records[i], b.records[i],
                    [&](int32_t layer, PartingProbe probe, const Difference& difference) {
                      raise(layer, probe, difference.value);
                      return true;
                    });
  }
}

LogParting find_log_parting(const std::string& baseline_log, const std::string& candidate_log,
                     const NoiseLevels& noise, const std::optional<SealKey>& reader) {
  const ItemRun a = read_run(baseline_log, reader), b = read_run(candidate_log, reader);
  LogParting parting;
  const size_t both = std::min(a.records.size(), b.records.size());
  for (size_t i = 0; i < both; ++i) {
    const TokenRecord &left = a.records[i], &right = b.records[i];
    parting.position = left.position;
    parting.is_prompt = left.position < std::min(a.prompt_tokens, b.prompt_tokens);
    if (left.position != right.position || left.token != right.token) {
      parting.kind = parting.is_prompt ? LogParting::Kind::kInput : LogParting::Kind::kToken;
      parting.baseline_token = left.token;
      parting.candidate_token = right.token;
      return parting;
    }
    const bool is_same = compare_records(
        left, right, [&](int32_t layer, PartingProbe probe, const Difference& difference) {
          const double level = noise.level(layer, probe);
          if (difference.value <= level) return true;
          parting.kind = LogParting::Kind::kValue;
          parting.layer = layer;
          parting.expert = difference.expert;
          parting.probe = probe;
          parting.difference = difference.value;
          parting.noise = level;
          return false;
        });
    if (!is_same) return parting;
  }
  if (a.records.size() != b.records.size()) {
    parting.kind =
        a.prompt_tokens != b.prompt_tokens ? LogParting::Kind::kInput : LogParting::Kind::kLength;
    parting.position = static_cast<int64_t>(both);
  }
  return parting;
}

std::string parting_text(const LogParting& parting) {
  if (parting.kind == LogParting::Kind::kNowhere) return "nowhere above noise";
  std::string text = "position " + std::to_string(parting.position) +
                     (parting.is_prompt ? " (prompt)" : " (answer)");
  switch (parting.kind) {
    case LogParting::Kind::kNowhere: break;
    case LogParting::Kind::kInput:
      return text + ": the prompts differ (tokenizer or template), token " +
             std::to_string(parting.baseline_token) + " became " +
             std::to_string(parting.candidate_token);
    case LogParting::Kind::kToken:
      return text + ": token " + std::to_string(parting.baseline_token) + " became " +
             std::to_string(parting.candidate_token) + ", with nothing above noise before it";
    case LogParting::Kind::kLength: return text + ": one of the answers ends here";
    case LogParting::Kind::kValue: break;
  }
  if (parting.layer >= 0) text += ", layer " + std::to_string(parting.layer);
  if (parting.expert >= 0) text += ", expert " + std::to_string(parting.expert);
  return text + ": " + std::string(parting_probe_name(parting.probe)) + " differs by " +
         number(parting.difference) + ", noise " + number(parting.noise);
}

}  // namespace vitrine
