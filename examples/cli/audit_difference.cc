// SPDX-License-Identifier: Apache-2.0
// Where two records differ: what diff and replay name.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "audit.h"

namespace cli {

namespace {

using vitrine::LayerMark;
using vitrine::LayerRecord;
using vitrine::TokenRecord;

constexpr double kDeviceTolerance = 0.005;

/// Compares value by value; keeps the first that differs, and the kinds of all that do.
class Comparison {
 public:
  Comparison(const Run& run, double tolerance, const HiddenSides& hidden)
      : run_(run), tolerance_(tolerance), hidden_(hidden) {}

  void values(const std::string& value, float left, float right) {
    if (is_hidden(std::isnan(left), std::isnan(right)) || !differs(left, right)) return;
    note(value, fmt::format("{}", left), fmt::format("{}", right));
  }
  void counts(const std::string& value, int64_t left, int64_t right) {
    if (left == right) return;
    note(value, fmt::format("{}", left), fmt::format("{}", right));
  }
  void tokens(const std::string& value, int32_t left, int32_t right) {
    if (left == right || is_hidden(left < 0, right < 0)) return;
    note(value, run_.quoted(left), run_.quoted(right));
  }
  /// Compares values in float64, as only a JSON log keeps them of the logits.
  void doubles(const std::string& value, double left, double right) {
    if (!differs(left, right)) return;
    note(value, fmt::format("{}", left), fmt::format("{}", right));
  }
  void digests(uint64_t left, uint64_t right) {
    if (left == 0 || right == 0 || left == right) return;
    note("digest of the logits", fmt::format("{:016x}", left), fmt::format("{:016x}", right));
  }
  /// Compares marks of unrounded values, where the log has only rounded ones.
  void marks(const std::string& value, uint8_t left, uint8_t right) {
    if (left == right) return;
    note(value + " (unrounded), mark", fmt::format("{:02x}", left), fmt::format("{:02x}", right));
  }
  void layers(const LayerRecord& left, const LayerRecord& right, const LayerMark& left_mark,
              const LayerMark& right_mark) {
    begin("norm");
    counts("layer's number", left.layer, right.layer);
    layer_ = left.layer;
    values("residual norm", left.residual_norm, right.residual_norm);
    marks("residual norm", left_mark.residual_norm, right_mark.residual_norm);
    begin("routing");
    counts("number of experts", static_cast<int64_t>(left.routes.size()),
           static_cast<int64_t>(right.routes.size()));
    for (size_t slot = 0; slot < std::min(left.routes.size(), right.routes.size()); ++slot) {
      const int32_t expert = left.routes[slot].expert;
      if (!is_hidden(expert < 0, right.routes[slot].expert < 0)) {
        counts(fmt::format("expert in slot {}", slot), expert, right.routes[slot].expert);
      }
      values(fmt::format("weight of expert {}", expert), left.routes[slot].weight,
             right.routes[slot].weight);
    }
    marks("experts or their weights", left_mark.routes, right_mark.routes);
    // This stands for routers that have scores, in logs that tell them.
    for (size_t slot = 0; slot < std::min(left.selection.size(), right.selection.size()); ++slot) {
      const int32_t expert = left.routes[slot].expert;
      values(fmt::format("score of expert {}", expert), left.selection[slot].score,
             right.selection[slot].score);
      values(fmt::format("selection key of expert {}", expert), left.selection[slot].key,
             right.selection[slot].key);
    }
    for (size_t slot = 0; slot < std::min(left.expert_norms.size(), right.expert_norms.size());
         ++slot) {
      values(fmt::format("norm of expert {}'s output", left.routes[slot].expert),
             left.expert_norms[slot], right.expert_norms[slot]);
    }
    // Only level full has them.
    begin("router's probability");
    const size_t count = std::min(left.router_probs.size(), right.router_probs.size());
    for (size_t expert = 0; expert < count; ++expert) {
      values(fmt::format("router's probability of expert {}", expert), left.router_probs[expert],
             right.router_probs[expert]);
    }
    layer_ = -1;
  }
  /// Where both have them: a log may keep them at some positions only.
  void hidden_states(const std::vector<vitrine::HiddenStateRecord>& left,
                     const std::vector<vitrine::HiddenStateRecord>& right) {
    begin("hidden state");
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      layer_ = left[i].layer;
      counts("hidden state's layer", left[i].layer, right[i].layer);
      const std::vector<float>&a = left[i].values, &b = right[i].values;
      counts("hidden state's size", static_cast<int64_t>(a.size()), static_cast<int64_t>(b.size()));
      for (size_t at = 0; at < std::min(a.size(), b.size()); ++at) {
        if (!differs(a[at], b[at])) continue;
        values(fmt::format("hidden state [{}]", at), a[at], b[at]);
        break;
      }
    }
    layer_ = -1;
  }
  /// Where the right one chose: a rerun may not have been able to.
  void samplers(const vitrine::SampleDecision& left, const vitrine::SampleDecision& right) {
    begin("sampler");
    const bool is_left_out = left.candidates == 0 && (hidden_.left || !run_.report);
    if (right.candidates == 0 || is_left_out) return;
    // A device's stages round otherwise than the CPU's, at the edge of a candidate too.
    const bool is_exact = run_.header.device == "cpu";
    if (is_exact) {
      counts("number of tokens that the sampler left", left.candidates, right.candidates);
    }
    const double tolerance =
        std::exchange(tolerance_, is_exact ? tolerance_ : std::max(tolerance_, kDeviceTolerance));
    values("probability among the tokens that the sampler left", left.probability,
           right.probability);
    tolerance_ = tolerance;
  }
  void predictions(const vitrine::PredictionRecord& left, const vitrine::PredictionRecord& right) {
    begin("predicted token");
    tokens("predicted token", left.token, right.token);
    begin("log-probability");
    values("log-probability", left.logprob, right.logprob);
    begin("entropy");
    values("entropy", left.entropy, right.entropy);
    begin("logits");
    digests(left.logits_digest, right.logits_digest);
    begin("alternatives");
    counts("number of alternatives", static_cast<int64_t>(left.alternatives.size()),
           static_cast<int64_t>(right.alternatives.size()));
    // A rerun chooses nothing: then there is nothing to compare.
    if (left.constraint.allowed > 0 && right.constraint.allowed > 0) {
      begin("constraint");
      counts("number of tokens that the constraint allowed", left.constraint.allowed,
             right.constraint.allowed);
      values("probability that the constraint took away", left.constraint.removed,
             right.constraint.removed);
    }
    begin("alternatives");
    for (size_t i = 0; i < std::min(left.alternatives.size(), right.alternatives.size()); ++i) {
      tokens(fmt::format("alternative {}", i), left.alternatives[i].token,
             right.alternatives[i].token);
      values(fmt::format("log-probability of alternative {}", i), left.alternatives[i].logprob,
             right.alternatives[i].logprob);
    }
    samplers(left.sampled, right.sampled);
  }
  /// Where both have them: the column may have been left out.
  void attributions(const vitrine::PredictionRecord& left, const vitrine::PredictionRecord& right) {
    begin("attribution");
    const auto sums = attributions_of(left), others = attributions_of(right);
    if (sums.empty() || others.empty()) return;
    counts("number of attributed logits", static_cast<int64_t>(sums.size()),
           static_cast<int64_t>(others.size()));
    for (size_t i = 0; i < std::min(sums.size(), others.size()); ++i) {
      const vitrine::AttributionRecord &a = *sums[i], &b = *others[i];
      const std::string whose = run_.federation.specialists.empty()
                                    ? ""
                                    : " by specialist " + plain(run_.federation.specialists[i]);
      values("logit" + whose, a.logit, b.logit);
      tokens("runner-up", a.runner_up, b.runner_up);
      values("runner-up's logit" + whose, a.runner_up_logit, b.runner_up_logit);
      counts("number of terms" + whose, static_cast<int64_t>(a.terms.size()),
             static_cast<int64_t>(b.terms.size()));
      for (size_t j = 0; j < std::min(a.terms.size(), b.terms.size()); ++j) {
        const std::string part(vitrine::term_kind_name(a.terms[j].kind));
        layer_ = a.terms[j].layer;
        values("term of " + part + whose, a.terms[j].value, b.terms[j].value);
        values("runner-up's term of " + part + whose, a.terms[j].runner_up, b.terms[j].runner_up);
        layer_ = -1;
      }
    }
  }
  /// Compares specialists' shares, where both records have some.
  void shares(const vitrine::FederationRecord& left, const vitrine::FederationRecord& right) {
    if (left.specialists.empty() || right.specialists.empty()) return;
    begin("specialists' shares");
    counts("number of specialists", static_cast<int64_t>(left.specialists.size()),
           static_cast<int64_t>(right.specialists.size()));
    for (size_t i = 0; i < std::min(left.specialists.size(), right.specialists.size()); ++i) {
      const vitrine::SpecialistShare &a = left.specialists[i], &b = right.specialists[i];
      const std::string& name = run_.federation.specialists[i];
      doubles("log-probability by specialist " + plain(name), a.logprob, b.logprob);
      doubles("weight of specialist " + plain(name), a.weight, b.weight);
      doubles("share of specialist " + plain(name), a.share, b.share);
    }
    doubles("joint log-probability", left.joint, right.joint);
    doubles("log-normaliser", left.log_normaliser, right.log_normaliser);
  }
  /// What the values that follow are told as.
  void begin(const char* kind) { kind_ = kind; }
  const std::optional<Difference>& found() const { return found_; }

 private:
  void note(const std::string& value, const std::string& left, const std::string& right) {
    if (!found_) found_ = Difference{layer_, value, left, right, {}};
    std::vector<std::string>& kinds = found_->kinds;
    if (std::ranges::find(kinds, kind_) == kinds.end()) kinds.emplace_back(kind_);
  }
  /// `is_left_missing`, `is_right_missing`: there is no value, which may be because it was left
  /// out.
  bool is_hidden(bool is_left_missing, bool is_right_missing) const {
    return (hidden_.left && is_left_missing) || (hidden_.right && is_right_missing);
  }
  bool differs(double a, double b) const {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) != std::isnan(b);
    if (a == b) return false;
    if (std::isinf(a) || std::isinf(b)) return true;  // no tolerance reaches there
    return std::fabs(a - b) > tolerance_ * std::max({1e-3, std::fabs(a), std::fabs(b)});
  }

  const Run& run_;
  double tolerance_;
  HiddenSides hidden_;
  int32_t layer_ = -1;
  const char* kind_ = "token";
  std::optional<Difference> found_;
};

}  // namespace

TokenRecord as_logged(const Run& run, TokenRecord record) {
  if (!run.report && !run.is_rounded) return record;
  return round_record(std::move(record),
                      run.is_rounded ? vitrine::LogDetail::kStandard : vitrine::LogDetail::kFull);
}

std::string Difference::text() const {
  return fmt::format("{}{}: {} and {}", layer < 0 ? "" : fmt::format("layer {}, ", layer), value,
                     left, right);
}

std::optional<Difference> find_difference(const Run& run, const TokenRecord& left,
                                          const TokenRecord& right, double tolerance,
                                          const HiddenSides& hidden, const MarkPair& marks) {
  Comparison comparison(run, tolerance, hidden);
  comparison.counts("position", left.position, right.position);
  comparison.tokens("token", left.token, right.token);
  for (size_t i = 0; i < std::min(left.layers.size(), right.layers.size()); ++i) {
    const bool has_marks = i < std::min(marks.left.size(), marks.right.size());
    comparison.layers(left.layers[i], right.layers[i], has_marks ? marks.left[i] : LayerMark{},
                      has_marks ? marks.right[i] : LayerMark{});
  }
  comparison.begin("routing");
  comparison.counts("number of layers", static_cast<int64_t>(left.layers.size()),
                    static_cast<int64_t>(right.layers.size()));
  comparison.hidden_states(left.hidden_states, right.hidden_states);
  if (!(hidden.left && !left.has_prediction) && !(hidden.right && !right.has_prediction)) {
    comparison.begin("predicted token");
    comparison.counts("number of predictions", left.has_prediction ? 1 : 0,
                      right.has_prediction ? 1 : 0);
  }
  if (left.has_prediction && right.has_prediction) {
    comparison.predictions(left.prediction, right.prediction);
  }
  comparison.shares(left.prediction.federation, right.prediction.federation);
  comparison.attributions(left.prediction, right.prediction);
  return comparison.found();
}

}  // namespace cli
