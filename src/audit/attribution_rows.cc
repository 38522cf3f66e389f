// SPDX-License-Identifier: Apache-2.0
#include "attribution_rows.h"

#include <algorithm>

#include "row_values.h"

namespace vitrine::audit {

AttributionRows::AttributionRows(const VtrHeader& header)
    : is_full_(header.detail == LogDetail::kFull),
      terms_(header.terms),
      num_terms_(header.federation.num_terms) {}

// A flag and the runner-up; then of each model both logits and roundings, and both tokens' terms.
size_t AttributionRows::row_bytes() const {
  if (terms_.empty()) return 0;
  const size_t models = std::max<size_t>(num_terms_.size(), 1);
  const size_t value = is_full_ ? 4 : 2;
  return 1 + 4 + 4 * 4 * models + 2 * value * terms_.size();
}

void AttributionRows::write(const TokenRecord& record, uint8_t* to) const {
  // The row stays zeros where there is no attribution. That is no question of has_prediction, whose
  // column may be left out.
  const AttributionRecord& alone = record.prediction.attribution;
  const std::vector<AttributionRecord>& all = record.prediction.federation.attributions;
  if (num_terms_.empty()) {
    if (alone.terms.size() != terms_.size()) return;
    to = put(put<uint8_t>(to, 1), alone.runner_up);
    write_sum(alone, to);
    return;
  }
  if (all.size() != num_terms_.size()) return;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].terms.size() != static_cast<size_t>(num_terms_[i])) return;
  }
  to = put(put<uint8_t>(to, 1), all[0].runner_up);
  for (const AttributionRecord& one : all) to = write_sum(one, to);
}

uint8_t* AttributionRows::write_sum(const AttributionRecord& sum, uint8_t* to) const {
  for (const float value : {sum.logit, sum.rounding, sum.runner_up_logit, sum.runner_up_rounding}) {
    to = put_value(to, value, true);
  }
  for (const TermRecord& term : sum.terms) to = put_value(to, term.value, is_full_);
  for (const TermRecord& term : sum.terms) to = put_value(to, term.runner_up, is_full_);
  return to;
}

void AttributionRows::read(const uint8_t* from, TokenRecord& record) const {
  PredictionRecord& prediction = record.prediction;
  prediction.attribution = {};
  prediction.federation.attributions.clear();
  const uint8_t flag = *from++;
  if (flag > 1) throw_damaged("an attribution begins with " + std::to_string(flag));
  if (flag == 0) return;
  const auto runner_up = take<int32_t>(from);
  if (runner_up < -1) bad_id("a runner-up", runner_up, int64_t{1} << 31);
  if (num_terms_.empty()) {
    prediction.attribution.runner_up = runner_up;
    return read_sum(from, terms_, record, prediction.attribution);
  }
  prediction.federation.attributions.resize(num_terms_.size());
  std::span<const AuditLayout::Term> left = terms_;
  for (size_t i = 0; i < num_terms_.size(); ++i) {
    const auto count = static_cast<size_t>(num_terms_[i]);
    prediction.federation.attributions[i].runner_up = runner_up;
    read_sum(from, left.first(count), record, prediction.federation.attributions[i]);
    left = left.subspan(count);
  }
}

void AttributionRows::read_sum(const uint8_t*& from, std::span<const AuditLayout::Term> terms,
                               const TokenRecord& record, AttributionRecord& sum) const {
  for (float* value : {&sum.logit, &sum.rounding, &sum.runner_up_logit, &sum.runner_up_rounding}) {
    *value = take<float>(from);
  }
  sum.terms.resize(terms.size());
  for (size_t i = 0; i < terms.size(); ++i) {
    TermRecord& term = sum.terms[i];
    term.kind = terms[i].kind;
    term.layer = terms[i].layer;
    if (terms[i].slot >= 0) {  // -1 where the routing was left out
      const LayerRecord& layer = record.layers[static_cast<size_t>(term.layer)];
      term.expert = layer.routes[static_cast<size_t>(terms[i].slot)].expert;
    }
    term.value = take_value(from, is_full_);
  }
  for (TermRecord& term : sum.terms) term.runner_up = take_value(from, is_full_);
}

}  // namespace vitrine::audit
