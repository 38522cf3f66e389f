// SPDX-License-Identifier: Apache-2.0
#include "evaluation/record.h"
#include "gates/json_form.h"

namespace vitrine {

namespace gates {

Json json_of(const Interval& interval) { return Json::array({interval.lower, interval.upper}); }

Json json_of(const Estimate& estimate) {
  return {{"mean", estimate.mean},
          {"standard_error", estimate.standard_error},
          {"clusters", estimate.num_clusters}};
}

std::string dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gates

namespace {

using gates::Json;
using gates::json_of;

Json json_of(const Parting& parting) {
  return {{"input_differs", parting.input_differs},
          {"is_known", parting.is_known},
          {"index", parting.index},
          {"baseline_token", parting.baseline_token},
          {"candidate_token", parting.candidate_token}};
}

Json json_of(const PairedAnswers& answers) {
  return {{"both", answers.both},
          {"lost", answers.first_only},
          {"gained", answers.second_only},
          {"neither", answers.neither}};
}

Json json_of(const PairedScore& score) {
  return {{"items", score.num_items},
          {"baseline", score.baseline},
          {"candidate", score.candidate},
          {"drop", json_of(score.drop)},
          {"drop_interval", json_of(score.drop.interval(0.95))}};
}

Json json_of(const PairedRatio& ratio) {
  return {{"pairs", ratio.num_pairs},
          {"ratio", ratio.ratio},
          {"interval", json_of(ratio.interval)},
          {"medians", ratio.medians}};
}

Json json_of(const TextComparison& text) {
  Json buckets = Json::array();
  for (const TextBucket& bucket : text.buckets) {
    buckets.push_back({{"first", bucket.first},
                       {"last", bucket.last},
                       {"tokens", bucket.count},
                       {"kl", bucket.kl},
                       {"agreement", bucket.agreement}});
  }
  return {{"texts", text.num_texts},
          {"tokens", text.num_tokens},
          {"baseline_perplexity", text.baseline_perplexity},
          {"candidate_perplexity", text.candidate_perplexity},
          {"logprob_drop", json_of(text.logprob_drop)},
          {"kl", json_of(text.kl)},
          {"kl_interval", json_of(text.kl.interval(0.95))},
          {"kl_999", text.kl_high},
          {"kl_999_interval", json_of(text.kl_high_interval)},
          {"agreement", json_of(text.agreement)},
          {"largest_drop", text.largest_drop},
          {"largest_item", text.largest_id},
          {"largest_position", text.largest_position},
          {"positions", buckets}};
}

Json json_of(const Calibration& calibration) {
  Json bins = Json::array();
  for (const ReliabilityBin& bin : calibration.bins) {
    bins.push_back({{"lower", bin.lower},
                    {"upper", bin.upper},
                    {"items", bin.count},
                    {"probability", bin.probability},
                    {"right", bin.share_right}});
  }
  return {{"items", calibration.count},
          {"expected_error", calibration.expected_error},
          {"brier", calibration.brier},
          {"bins", bins}};
}

template <typename Value>
Json json_if(const std::optional<Value>& value) {
  return value ? json_of(*value) : Json(nullptr);
}

Json json_of(const ComparedTask& task) {
  return {{"name", task.name},
          {"domain", task.domain},
          {"kind", evaluation::kind_name(task.kind)},
          {"items", task.num_items},
          {"is_counted", task.is_counted},
          {"not_counted", task.not_counted},
          {"chance", task.chance},
          {"p_chance", task.p_chance},
          {"answers", json_of(task.answers)},
          {"baseline_success", json_of(task.baseline_success)},
          {"candidate_success", json_of(task.candidate_success)},
          {"drop", task.answers.drop()},
          {"drop_interval", json_of(task.drop)},
          {"equal_digests", task.equal_digests},
          {"inputs_differ", task.inputs_differ},
          {"changes", task.changes},
          {"score", json_if(task.score)},
          {"reference_logprob", json_if(task.reference)},
          {"choice_margin", json_if(task.margin)},
          {"right_probability", json_if(task.right_probability)},
          {"text", json_if(task.text)},
          {"first_token_seconds", json_if(task.first_token_seconds)},
          {"token_seconds", json_if(task.token_seconds)}};
}

Json json_of(const Flip& flip) {
  return {{"task", flip.task},
          {"id", flip.id},
          {"is_lost", flip.is_lost},
          {"is_critical", flip.is_critical},
          {"is_counted", flip.is_counted},
          {"parting", json_of(flip.parting)},
          {"expected", flip.expected},
          {"baseline_answer", flip.baseline_answer},
          {"candidate_answer", flip.candidate_answer}};
}

Json json_of(const ItemChange& change) {
  return {{"task", change.task},
          {"id", change.id},
          {"what", change.what},
          {"parting", json_of(change.parting)}};
}

template <typename Value>
Json list_of(const std::vector<Value>& values) {
  Json list = Json::array();
  for (const Value& value : values) list.push_back(json_of(value));
  return list;
}

}  // namespace

std::string comparison_json(const EvaluationComparison& comparison) {
  return gates::dump({{"items", comparison.num_items},
                      {"counted_items", comparison.counted_items},
                      {"critical_items", comparison.critical_items},
                      {"critical_lost", comparison.critical_lost},
                      {"equal_digests", comparison.equal_digests},
                      {"answers", json_of(comparison.answers)},
                      {"drop", comparison.answers.drop()},
                      {"drop_interval", json_of(comparison.drop)},
                      {"p_worse", comparison.answers.p_worse()},
                      {"tasks", list_of(comparison.tasks)},
                      {"flips", list_of(comparison.flips)},
                      {"changes", list_of(comparison.changes)},
                      {"text", json_if(comparison.text)},
                      {"baseline_calibration", json_of(comparison.baseline_calibration)},
                      {"candidate_calibration", json_of(comparison.candidate_calibration)},
                      {"first_token_seconds", json_if(comparison.first_token_seconds)},
                      {"token_seconds", json_if(comparison.token_seconds)},
                      {"notes", comparison.notes}});
}

}  // namespace vitrine
