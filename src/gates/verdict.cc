// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "core/json_text.h"
#include "gates/metric.h"

namespace vitrine {

namespace {

using gates::MetricInput;
using gates::Pairing;

constexpr size_t kMostBreaking = 20;  // items that a rule names
constexpr std::array kDomains = {"logic", "schema", "recall", "safety", "text"};

bool is_in_scope(const SuiteTask& task, const std::string& scope) {
  if (scope.ends_with('*')) return task.name.starts_with(scope.substr(0, scope.size() - 1));
  return scope == "all" || task.name == scope || task.domain == scope;
}

/// Throws kBadFile where nothing that a suite could have is meant.
void require_scope(const GateFile& gate, const GateRule& rule, const char* field,
                   const std::string& scope, const Pairing& pairing) {
  const bool may_be_absent = scope.ends_with('*') || scope == "all" ||
                             std::ranges::find(kDomains, scope) != kDomains.end();
  if (may_be_absent) return;
  std::string names;
  for (const gates::PairedTask& task : pairing.tasks) {
    if (is_in_scope(*task.told, scope)) return;
    names += (names.empty() ? "" : ", ") + task.told->name;
  }
  throw Error(ErrorKind::kBadFile, gate.path + ": [[rule]] " + quote_text(rule.name) + ": '" +
                                       field + "' is " + quote_text(scope) +
                                       "; expected all, a domain or a task of the suite (" + names +
                                       ")");
}

/// The tasks that a rule looks at.
MetricInput input_of(const GateFile& gate, const GateRule& rule, const Pairing& pairing,
                     double confidence) {
  require_scope(gate, rule, "scope", rule.scope, pairing);
  if (!rule.except.empty()) require_scope(gate, rule, "except", rule.except, pairing);
  MetricInput input{{}, rule, confidence};
  for (const gates::PairedTask& task : pairing.tasks) {
    const bool is_left_out = !rule.except.empty() && is_in_scope(*task.told, rule.except);
    if (rule.is_of_counted && !task.is_counted) continue;
    if (is_in_scope(*task.told, rule.scope) && !is_left_out) input.tasks.push_back(&task);
  }
  return input;
}

/// Rules of which one is enough share what may go wrong, so that their bounds are surer.
double shared_confidence(const GateFile& gate, const GateRule& rule) {
  const std::string& head = rule.stands_for.empty() ? rule.name : rule.stands_for;
  const auto ways = 1 + std::ranges::count(gate.rules, head, &GateRule::stands_for);
  return 1 - (1 - rule.confidence) / static_cast<double>(ways);
}

gates::Measured measure_rule(const GateFile& gate, const GateRule& rule, const Pairing& pairing) {
  const MetricInput input = input_of(gate, rule, pairing, shared_confidence(gate, rule));
  if (input.tasks.empty()) {
    return gates::not_measured("the suite has no task " +
                               std::string(rule.is_of_counted ? "that counts " : "") +
                               "in scope '" + rule.scope + "'");
  }
  return gates::find_metric(rule.metric)->measure(input);
}

RuleVerdict verdict_of(const GateFile& gate, const GateRule& rule, const Pairing& pairing) {
  gates::Measured measured = measure_rule(gate, rule, pairing);
  RuleVerdict verdict;
  verdict.rule = rule;
  verdict.unit = gates::find_metric(rule.metric)->facts.unit;
  verdict.things = gates::find_metric(rule.metric)->facts.things;
  verdict.why = measured.why;
  verdict.found = measured.found;
  verdict.num_items = measured.num_items;
  verdict.num_breaking = measured.breaking.size();
  measured.breaking.resize(std::min(measured.breaking.size(), kMostBreaking));
  verdict.items = std::move(measured.breaking);
  verdict.confidence = shared_confidence(gate, rule);
  const bool is_inferred = rule.kind != GateKind::kExact && verdict.why.empty();
  verdict.interval = is_inferred ? measured.interval : Interval{gates::kNone, gates::kNone};
  const bool may_refuse = is_inferred && rule.stands_for.empty() && !rule.never_refuses;
  verdict.p_value = may_refuse ? measured.p_worse : gates::kNone;
  if (is_inferred) verdict.items_needed = measured.needed;
  return verdict;
}

GateOutcome outcome_of(const RuleVerdict& verdict, double level) {
  if (!verdict.why.empty()) return GateOutcome::kNotMeasured;
  const GateRule& rule = verdict.rule;
  const bool is_worse = verdict.p_holm < level;
  switch (rule.kind) {
    case GateKind::kExact:
      if (verdict.found <= rule.bound) return GateOutcome::kPasses;
      return rule.never_refuses ? GateOutcome::kInconclusive : GateOutcome::kRefused;
    case GateKind::kNotWorse:
      if (is_worse) return GateOutcome::kRefused;
      // Where there is no test, more than the bound is neither shown nor ruled out.
      return std::isnan(verdict.p_value) && verdict.found > rule.bound ? GateOutcome::kInconclusive
                                                                       : GateOutcome::kPasses;
    case GateKind::kWithin: break;
  }
  if (verdict.interval.upper <= rule.bound) return GateOutcome::kPasses;
  return is_worse ? GateOutcome::kRefused : GateOutcome::kInconclusive;
}

/// A rule that was not decided is, where another one that stands for it passes.
void decide_by_stand_ins(std::vector<RuleVerdict>& rules) {
  for (RuleVerdict& verdict : rules) {
    if (verdict.outcome != GateOutcome::kInconclusive) continue;
    const auto other = std::ranges::find_if(rules, [&](const RuleVerdict& one) {
      return one.rule.stands_for == verdict.rule.name && one.outcome == GateOutcome::kPasses;
    });
    if (other == rules.end()) continue;
    verdict.outcome = GateOutcome::kPasses;
    verdict.decided_by = other->rule.name;
  }
}

GateOutcome outcome_of_all(const std::vector<RuleVerdict>& rules) {
  bool is_open = false, is_held = false;
  for (const RuleVerdict& verdict : rules) {
    switch (verdict.outcome) {
      case GateOutcome::kRefused: return GateOutcome::kRefused;
      case GateOutcome::kPasses: is_held = true; break;
      // One that stands for another decides nothing where it is open: that other one does.
      case GateOutcome::kInconclusive: is_open = is_open || verdict.rule.stands_for.empty(); break;
      case GateOutcome::kNotMeasured: is_open = is_open || !verdict.rule.is_optional; break;
    }
  }
  return is_held && !is_open ? GateOutcome::kPasses : GateOutcome::kInconclusive;
}

void require_complete(const Evaluation& evaluation) {
  if (evaluation.is_complete) return;
  throw Error(ErrorKind::kInvalidArgument,
              evaluation.path + ": holds " + std::to_string(evaluation.items.size()) +
                  " items and is not complete; expected a whole result (`vitrine eval` with the "
                  "same arguments goes on where it stopped)");
}

/// Both have every item: what one lacks could be what it would lose.
void require_same_items(const Pairing& pairing, const Evaluation& baseline,
                        const Evaluation& candidate) {
  size_t pairs = 0;
  for (const gates::PairedTask& task : pairing.tasks) pairs += task.pairs.size();
  if (pairs == baseline.items.size() && pairs == candidate.items.size()) return;
  throw Error(ErrorKind::kInvalidArgument,
              candidate.path + ": has " + std::to_string(candidate.items.size()) + " items, and " +
                  baseline.path + " " + std::to_string(baseline.items.size()) + ", of which " +
                  std::to_string(pairs) + " are in both; expected the same ones");
}

Pairing pair_whole(const Evaluation& baseline, const Evaluation& candidate) {
  require_complete(baseline);
  require_complete(candidate);
  Pairing pairing = gates::pair_items(baseline, candidate);
  require_same_items(pairing, baseline, candidate);
  return pairing;
}

/// Returns what a rule finds in each evaluation of noise; NaN where nothing was measured.
std::vector<double> noise_of(const GateFile& gate, const GateRule& rule,
                             std::span<const Pairing> noise) {
  std::vector<double> found;
  for (const Pairing& pairing : noise) {
    const gates::Measured measured = measure_rule(gate, rule, pairing);
    found.push_back(measured.why.empty() ? measured.found : gates::kNone);
  }
  return found;
}

/// Measures a rule, once its bound is set where noise sets it.
RuleVerdict verdict_beside(const GateFile& gate, GateRule rule, const Pairing& pairing,
                           std::span<const Pairing> noise) {
  const std::vector<double> found = noise_of(gate, rule, noise);
  double most = 0;
  for (const double one : found) most = std::isnan(one) ? most : std::max(most, one);
  if (rule.times_noise > 0) rule.bound = rule.times_noise * most;
  RuleVerdict verdict = verdict_of(gate, rule, pairing);
  verdict.noise = found;
  if (rule.times_noise > 0 && most <= 0 && verdict.why.empty()) {
    verdict.why = "noise sets its bound, and was not measured";
  }
  return verdict;
}

/// What noise does, too, is no reason to refuse, and none to pass.
void yield_to_noise(RuleVerdict& verdict) {
  if (!verdict.rule.is_beyond_noise || verdict.outcome != GateOutcome::kRefused) return;
  verdict.is_within_noise =
      std::ranges::any_of(verdict.noise, [&](double found) { return found >= verdict.found; });
  if (verdict.is_within_noise) verdict.outcome = GateOutcome::kInconclusive;
}

}  // namespace

Verdict run_gate(const GateFile& gate, const Evaluation& baseline, const Evaluation& candidate,
                 std::span<const Evaluation> noise) {
  const Pairing pairing = pair_whole(baseline, candidate);
  Verdict verdict;
  verdict.gate = gate.name;
  verdict.gate_sha256 = gate.sha256;
  verdict.baseline_sha256 = baseline.sha256;
  verdict.candidate_sha256 = candidate.sha256;
  verdict.suite_digest = baseline.suite_digest;
  std::vector<Pairing> perturbed;
  for (const Evaluation& one : noise) {
    perturbed.push_back(pair_whole(baseline, one));
    verdict.noise_sha256.push_back(one.sha256);
  }
  std::vector<double> p_values;
  for (const GateRule& rule : gate.rules) {
    verdict.rules.push_back(verdict_beside(gate, rule, pairing, perturbed));
    const RuleVerdict& last = verdict.rules.back();
    p_values.push_back(last.why.empty() ? last.p_value : gates::kNone);
  }
  const std::vector<double> p_holm = holm_p_values(p_values);
  for (size_t i = 0; i < p_holm.size(); ++i) {
    RuleVerdict& rule = verdict.rules[i];
    rule.p_holm = p_holm[i];
    rule.outcome = outcome_of(rule, 1 - gate.confidence);
    yield_to_noise(rule);
  }
  decide_by_stand_ins(verdict.rules);
  verdict.outcome = outcome_of_all(verdict.rules);
  return verdict;
}

int Verdict::exit_code() const {
  switch (outcome) {
    case GateOutcome::kPasses: return 0;
    case GateOutcome::kRefused: return 3;
    case GateOutcome::kInconclusive:
    case GateOutcome::kNotMeasured: break;
  }
  return 4;
}

std::string_view gate_outcome_name(GateOutcome outcome) {
  switch (outcome) {
    case GateOutcome::kPasses: return "passes";
    case GateOutcome::kRefused: return "refused";
    case GateOutcome::kInconclusive: return "inconclusive";
    case GateOutcome::kNotMeasured: break;
  }
  return "not measured";
}

}  // namespace vitrine
