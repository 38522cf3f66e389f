// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "gates/json_form.h"

namespace vitrine {

namespace {

std::string printed(const char* form, double value) {
  char text[64];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

std::string amount(double value, const std::string& unit) {
  if (std::isinf(value)) return value > 0 ? "no bound" : "no lower bound";
  if (unit == "share") return printed("%.2f %%", 100 * value);
  if (unit == "items") return printed("%.0f", value);
  if (unit == "ratio") return printed("%.3f times", value);
  return printed("%.4g nats", value);
}

std::string noise_text(const RuleVerdict& verdict) {
  double most = -INFINITY;
  for (const double found : verdict.noise) {
    if (!std::isnan(found)) most = std::max(most, found);
  }
  if (std::isinf(most)) return {};
  return "; noise alone: up to " + amount(most, verdict.unit) + " in " +
         std::to_string(verdict.noise.size());
}

std::string breaking_text(const RuleVerdict& verdict) {
  if (verdict.unit != "items" || verdict.items.empty()) return {};
  const std::string rest =
      verdict.num_breaking > 1 ? " and " + std::to_string(verdict.num_breaking - 1) + " more" : "";
  return "; " + verdict.items.front() + rest;
}

const char* kind_text(GateKind kind) {
  switch (kind) {
    case GateKind::kWithin: return "within";
    case GateKind::kNotWorse: return "not_worse";
    case GateKind::kExact: break;
  }
  return "exact";
}

using gates::Json;

Json json_of_rule(const RuleVerdict& verdict) {
  const GateRule& rule = verdict.rule;
  return {{"rule", rule.name},
          {"metric", rule.metric},
          {"unit", verdict.unit},
          {"scope", rule.scope},
          {"except", rule.except},
          {"kind", kind_text(rule.kind)},
          {"options", rule.options},
          {"optional", rule.is_optional},
          {"beyond_noise", rule.is_beyond_noise},
          {"never_refuses", rule.never_refuses},
          {"counted_only", rule.is_of_counted},
          {"stands_for", rule.stands_for},
          {"outcome", gate_outcome_name(verdict.outcome)},
          {"why", verdict.why},
          {"decided_by", verdict.decided_by},
          {"found", verdict.why.empty() ? Json(verdict.found) : Json(nullptr)},
          {"bound", rule.bound},
          {"times_noise", rule.times_noise},
          {"confidence", verdict.confidence},
          {"interval", gates::json_of(verdict.interval)},
          {"p_value", verdict.p_value},
          {"p_holm", verdict.p_holm},
          {"things", verdict.things},
          {"items", verdict.num_items},
          {"items_needed", verdict.items_needed ? Json(*verdict.items_needed) : Json(nullptr)},
          {"noise", verdict.noise},
          {"within_noise", verdict.is_within_noise},
          {"breaking", verdict.items},
          {"num_breaking", verdict.num_breaking},
          {"next", rule.next},
          {"text", verdict.text()}};
}

}  // namespace

std::string RuleVerdict::text() const {
  const std::string head = std::string(gate_outcome_name(outcome)) + ": " + rule.name + ": ";
  if (outcome == GateOutcome::kNotMeasured) {
    return head + why + (rule.is_optional ? " (optional)" : "");
  }
  std::string line = head + amount(found, unit) + " (bound " + amount(rule.bound, unit);
  if (rule.times_noise > 0) line += printed(", %.4g times the noise", rule.times_noise);
  if (!std::isnan(interval.upper)) {
    line += "; " + printed("%.4g", 100 * confidence) + " % bounds " + amount(interval.lower, unit) +
            " to " + amount(interval.upper, unit);
  }
  if (!std::isnan(p_holm)) line += printed("; p %.2g", p_holm);
  line += ") in " + std::to_string(num_items) + " " + things;
  line += breaking_text(*this) + noise_text(*this);
  if (!decided_by.empty()) return line + "; decided by '" + decided_by + "'";
  if (is_within_noise) return line + "; noise alone does as much";
  if (outcome == GateOutcome::kInconclusive && std::isnan(interval.upper)) {
    line += "; one group alone gives no interval";
  }
  if (outcome == GateOutcome::kInconclusive && items_needed) {
    line += "; " + std::to_string(*items_needed) + " " + things + " would decide";
  }
  if (outcome != GateOutcome::kPasses && !rule.next.empty()) line += "; next: " + rule.next;
  return line;
}

std::string Verdict::text() const {
  std::string lines = "gate '" + gate + "': " + std::string(gate_outcome_name(outcome)) + "\n";
  for (const RuleVerdict& rule : rules) lines += rule.text() + "\n";
  return lines;
}

std::string verdict_json(const Verdict& verdict) {
  Json rules = Json::array();
  for (const RuleVerdict& rule : verdict.rules) rules.push_back(json_of_rule(rule));
  return gates::dump({{"gate", verdict.gate},
                      {"gate_sha256", verdict.gate_sha256},
                      {"outcome", gate_outcome_name(verdict.outcome)},
                      {"exit_code", verdict.exit_code()},
                      {"baseline_sha256", verdict.baseline_sha256},
                      {"candidate_sha256", verdict.candidate_sha256},
                      {"suite_digest", verdict.suite_digest},
                      {"noise_sha256", verdict.noise_sha256},
                      {"rules", rules}});
}

}  // namespace vitrine
