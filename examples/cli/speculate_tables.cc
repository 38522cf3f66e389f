// SPDX-License-Identifier: Apache-2.0
// Tables of `bench speculate`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "speculate_runs.h"
#include "speculation_options.h"
#include "statistics.h"

namespace cli {

namespace {

// Passes with guesses of which at least so many were right.
int64_t passes_with(const vitrine::SpeculationCounts& counts, size_t right) {
  int64_t passes = 0;
  for (size_t i = right; i < counts.acceptance_histogram.size(); ++i) {
    passes += counts.acceptance_histogram[i];
  }
  return passes;
}

// "81 64 40 …": the share of passes with guesses in which the first, the first two, … were right.
std::string shares_by_position(const vitrine::SpeculationCounts& counts) {
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t right = 1; right < counts.acceptance_histogram.size() && right <= kShown; ++right) {
    const auto steps = static_cast<double>(std::max<int64_t>(1, counts.num_spec_steps));
    text += fmt::format("{:>4.0f}", 100 * static_cast<double>(passes_with(counts, right)) / steps);
  }
  return text;
}

// (1 - a^(k + 1)) / (1 - a), with a = accepted / (accepted + passes that ended in a rejection), and
// k the guesses of a pass.
double expected_tokens(const vitrine::SpeculationCounts& counts) {
  if (counts.num_spec_steps == 0) return 1;
  const auto accepted = static_cast<double>(counts.num_accepted_draft_tokens);
  const auto rejected = static_cast<double>(counts.num_rejected_passes);
  const double k =
      static_cast<double>(counts.num_draft_tokens) / static_cast<double>(counts.num_spec_steps);
  if (rejected == 0) return k + 1;
  const double a = accepted / (accepted + rejected);
  return (1 - std::pow(a, k + 1)) / (1 - a);
}

// The speed that counts and costs say of what is measured, decoding behind the prompt's pass, which
// chooses the first token: tokens over what their passes and calls cost, in passes of one token as
// these answers have them.
double predicted_speed(const CandidateRuns& runs, const vitrine::PassCosts& costs) {
  const vitrine::SpeculationCounts& counts = runs.counts;
  const auto tokens = static_cast<double>(runs.tokens - runs.answers);
  const double of_one = std::reduce(runs.plain_seconds.begin(), runs.plain_seconds.end()) / tokens;
  const auto steps = static_cast<double>(counts.num_spec_steps);
  const double drafts = steps > 0 ? static_cast<double>(counts.num_draft_tokens) / steps : 0.0;
  const double plain = static_cast<double>(counts.num_passes - runs.answers) - steps;
  const auto below = static_cast<int32_t>(drafts);
  const double part = drafts - below;
  const double cost = (1 - part) * costs.of(below + 1) + part * costs.of(below + 2);
  const double all = plain + steps * cost + counts.draft_seconds / of_one;
  return all > 0 ? tokens / all : 1;
}

// "1.52x", or a dash where no answer counts.
std::string speed_text(double speed) {
  return std::isfinite(speed) ? fmt::format("{:.2f}x", speed) : "-";
}

Interval speed_interval(const CandidateRuns& runs) {
  return bootstrap_ratio_interval(runs.plain_seconds, runs.seconds);
}

std::string interval_text(const Interval& interval) {
  if (!std::isfinite(interval.low)) return "-";
  return fmt::format("{:.2f} to {:.2f}", interval.low, interval.high);
}

std::string verdict(const Interval& interval) {
  if (!std::isfinite(interval.low)) return "too short to tell";
  if (interval.low >= 1) return "pays";
  return interval.high < 1 ? "does not pay" : "too close to tell";
}

// A line about answers that do not count.
std::string short_note(const CandidateRuns& runs) {
  if (runs.short_answers == 0) return "";
  return fmt::format(
      "{}, {}: {} of {} answers have fewer than {} tokens, {} together, and are not "
      "counted ({})\n",
      runs.name, runs.kind, runs.short_answers, runs.prompts, kFewestTokens, runs.short_tokens,
      speed_text(runs.short_plain_seconds / runs.short_seconds));
}

nlohmann::ordered_json number_or_null(double number) {
  return std::isfinite(number) ? nlohmann::ordered_json(number) : nlohmann::ordered_json(nullptr);
}

/// Holds what passes of so many tokens are expected to read, over a pass of one: of a layer's
/// experts (E / k) (1 - (1 - k / E)^tokens) where its router takes them at random, and of all
/// weights.
struct ExpectedReads {
  double experts = 1, weights = 1;
};

ExpectedReads expected_reads(const vitrine::Engine& engine, int32_t tokens) {
  const vitrine::ModelSummary& summary = engine.summary();
  if (summary.num_experts == 0) return {};
  uint64_t all = 0, experts = 0;
  for (const vitrine::PlanEntry& entry : engine.plan()) {
    all += entry.weight_bytes;
    if (entry.op == "experts") experts += entry.weight_bytes;
  }
  const double taken =
      static_cast<double>(summary.num_experts_per_token) / static_cast<double>(summary.num_experts);
  const double times = (1 - std::pow(1 - taken, tokens)) / taken;
  const double share =
      static_cast<double>(experts) / static_cast<double>(std::max<uint64_t>(all, 1));
  return {times, 1 + share * (times - 1)};
}

}  // namespace

int BenchSpeculateArguments::most_drafts() const {
  return right_runs.empty() ? max_drafts : std::ranges::max(right_runs) + 1;
}

double CandidateRuns::speed() const { return ratio_of_sums(plain_seconds, seconds); }

double CandidateRuns::tokens_a_pass() const {
  return static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(1, counts.num_passes));
}

double CandidateRuns::upkeep_microseconds() const {
  return 1e6 * counts.draft_seconds / static_cast<double>(std::max<int64_t>(1, tokens));
}

std::string speculate_table(const BenchSpeculateArguments& arguments,
                            const std::vector<CandidateRuns>& all) {
  size_t width = 8;  // heads have a path
  for (const CandidateRuns& runs : all) width = std::max(width, runs.name.size() + 1);
  std::string text = fmt::format(
      "{}: {} prompts, {} tokens each at most, {} guesses a pass at most{}\n\n"
      "{:<{}}{:<10}{:>8}{:>16}{:>9}{:>12}{:>14}{:>14}{:>12}\n",
      arguments.model, all.empty() ? 0 : all.front().prompts, arguments.max_new_tokens,
      arguments.most_drafts(),
      arguments.max_depth > 0 ? fmt::format(", on paths of {}", arguments.max_depth) : "", "",
      width, "answers", "speed", "95 %", "median", "accepted", "tokens/pass", "us a token",
      "identical");
  for (const CandidateRuns& runs : all) {
    text +=
        fmt::format("{:<{}}{:<10}{:>8}{:>16}{:>9}{:>10.0f} %{:>14.2f}{:>14.1f}{:>12}\n", runs.name,
                    width, runs.kind, speed_text(runs.speed()), interval_text(speed_interval(runs)),
                    speed_text(median(runs.ratios)), 100 * runs.counts.draft_acceptance_rate(),
                    runs.tokens_a_pass(), runs.upkeep_microseconds(),
                    fmt::format("{} of {}", runs.identical, runs.prompts));
  }
  text +=
      "\nspeed: decoding with guesses over the same without, of all tokens; median: of the "
      "prompts\n";
  for (const CandidateRuns& runs : all) text += short_note(runs);
  if (arguments.right_runs.empty() || all.empty()) return text;
  const CandidateRuns& first = all.front();
  return text +
         fmt::format(
             "N right: in each pass N tokens of the answer as it was without guesses, and a wrong "
             "one; {:.0f} different tokens in an answer of {:.0f}\n",
             static_cast<double>(first.different_tokens) / static_cast<double>(first.prompts),
             static_cast<double>(first.first_tokens) / static_cast<double>(first.prompts));
}

nlohmann::ordered_json speculate_report(const BenchSpeculateArguments& arguments,
                                        const std::vector<CandidateRuns>& all,
                                        const vitrine::PassCosts& costs) {
  nlohmann::ordered_json json;
  json["model"] = arguments.model;
  json["max_new_tokens"] = arguments.max_new_tokens;
  json["draft_max"] = arguments.most_drafts();
  if (arguments.max_depth > 0) json["draft_depth"] = arguments.max_depth;
  json["temperature"] = arguments.temperature;
  json["repeat"] = arguments.repeat;
  for (const CandidateRuns& runs : all) {
    const Interval interval = speed_interval(runs);
    vitrine::SpeculationCounts all_counts = runs.counts;
    all_counts += runs.short_counts;
    const auto sum = [](const std::vector<double>& values) {
      return std::reduce(values.begin(), values.end());
    };
    json["candidates"].push_back(
        {{"name", runs.name},
         {"answers", runs.kind},
         {"ratio", number_or_null(runs.speed())},
         {"ratio_interval", {number_or_null(interval.low), number_or_null(interval.high)}},
         {"ratio_median", number_or_null(median(runs.ratios))},
         {"ratios", runs.ratios},
         {"tokens", runs.tokens + runs.short_tokens},
         {"different_tokens", runs.different_tokens},
         {"seconds", sum(runs.seconds) + runs.short_seconds},
         {"plain_seconds", sum(runs.plain_seconds) + runs.short_plain_seconds},
         {"tokens_per_pass", runs.tokens_a_pass()},
         {"upkeep_microseconds", runs.upkeep_microseconds()},
         {"identical", runs.identical},
         {"prompts", runs.prompts},
         {"short_answers", runs.short_answers},
         {"short_tokens", runs.short_tokens},
         {"counts", speculation_json(all_counts)}});
    if (!costs.empty()) {
      json["candidates"].back()["predicted"] = number_or_null(predicted_speed(runs, costs));
      json["candidates"].back()["verdict"] = verdict(interval);
    }
  }
  return json;
}

std::string selection_table(const BenchSpeculateArguments& arguments,
                            const std::vector<DraftCandidate>& candidates,
                            const std::vector<CandidateRuns>& all,
                            const vitrine::PassCosts& costs) {
  std::string text = fmt::format("{}: a pass of one token takes {:.3f} ms\n", arguments.model,
                                 1000 * costs.of_one());
  for (const DraftCandidate& candidate : candidates) {
    text += "\n" + candidate.name;
    if (candidate.overlap) {
      text += candidate.overlap->is_same
                  ? ": the same vocabulary"
                  : fmt::format(": {:.1f} % of its {} tokens are in the vocabulary",
                                100 * candidate.overlap->share(), candidate.overlap->draft_tokens);
    }
    text += fmt::format("\n{:<10}{:>26}{:>12}{:>8}{:>12}{:>11}{:>10}{:>16}  {}\n", "answers",
                        "right up to 1, 2, … (%)", "tokens/pass", "E", "a call", "predicted",
                        "measured", "95 %", "verdict");
    for (const CandidateRuns& runs : all) {
      if (runs.name != candidate.name) continue;
      const double calls = static_cast<double>(
          std::max<int64_t>(1, runs.counts.num_passes - runs.counts.num_paused_passes));
      const Interval interval = speed_interval(runs);
      text +=
          fmt::format("{:<10}{:>26}{:>12.2f}{:>8.2f}{:>9.3f} ms{:>11}{:>10}{:>16}  {}\n", runs.kind,
                      shares_by_position(runs.counts), runs.counts.mean_acceptance_length(),
                      expected_tokens(runs.counts), 1000 * runs.counts.draft_seconds / calls,
                      speed_text(predicted_speed(runs, costs)), speed_text(runs.speed()),
                      interval_text(interval), verdict(interval));
    }
    for (const CandidateRuns& runs : all) {
      if (runs.name == candidate.name) text += short_note(runs);
    }
  }
  return text +
         "\nE: (1 - a^(k + 1)) / (1 - a), a the right guesses over these and the passes that ended "
         "in a wrong one, k the guesses of a pass. predicted: by counts and the costs of passes; "
         "measured: both of all tokens behind the first one of each answer.\n";
}

std::string costs_table(const vitrine::Engine& engine, const std::string& model,
                        const vitrine::PassCosts& costs) {
  const bool has_experts = engine.summary().num_experts > 0;
  std::string text = fmt::format("{}: passes of one sequence\n\n{:>8}{:>12}{:>10}{}\n", model,
                                 "tokens", "ms", "x", has_experts ? "   experts   weights" : "");
  for (const vitrine::PassCost& cost : costs.all()) {
    text += fmt::format("{:>8}{:>12.3f}{:>10.2f}", cost.tokens, 1000 * cost.seconds,
                        costs.of(cost.tokens));
    const ExpectedReads reads = expected_reads(engine, cost.tokens);
    if (has_experts) text += fmt::format("{:>10.2f}{:>10.2f}", reads.experts, reads.weights);
    text += "\n";
  }
  if (!has_experts) return text;
  return text +
         "\nexperts, weights: that a pass reads over one of one token, if its tokens' experts are "
         "taken at random\n";
}

nlohmann::ordered_json costs_report(const vitrine::Engine& engine, const std::string& model,
                                    const vitrine::PassCosts& costs) {
  nlohmann::ordered_json json;
  json["model"] = model;
  json["threads"] = engine.summary().threads;
  json["isa"] = engine.summary().isa;
  json["costs"] = pass_costs_json(costs);
  for (nlohmann::ordered_json& cost : json["costs"]) {
    if (engine.summary().num_experts == 0) break;
    const ExpectedReads reads = expected_reads(engine, cost["tokens"].get<int32_t>());
    cost["expected_experts"] = reads.experts;
    cost["expected_weights"] = reads.weights;
  }
  return json;
}

}  // namespace cli
