// SPDX-License-Identifier: Apache-2.0
#include "federation_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace cli {

namespace {

using vitrine::PredictionRecord;
using vitrine::ShareKind;

bool has_terms(const Run& run) { return run.federation.shares == ShareKind::kTerm; }

std::string name_of(const Run& run, size_t i) { return plain(run.federation.specialists[i]); }

}  // namespace

int leading_specialist(const Run& run, const PredictionRecord& prediction) {
  const auto& shares = prediction.federation.specialists;
  int leader = -1;
  double best = -INFINITY;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double value =
        has_terms(run) ? shares[i].weight * std::exp(shares[i].logprob) : shares[i].share;
    if (leader >= 0 && !(value > best)) continue;
    leader = static_cast<int>(i);
    best = value;
  }
  return leader;
}

SpecialistTotals specialist_totals(const Run& run) {
  SpecialistTotals totals;
  const size_t count = run.federation.specialists.size();
  totals.shares.resize(count);
  totals.leading.resize(count);
  for (const vitrine::TokenRecord& record : run.records) {
    const PredictionRecord& prediction = record.prediction;
    if (!record.has_prediction) continue;
    const bool is_told = prediction.federation.specialists.size() == count;
    ++(is_told ? totals.told : totals.left_out);
    if (!is_told) continue;
    const double size = std::max(1.0, std::fabs(prediction.federation.joint));
    totals.largest_residual =
        std::max(totals.largest_residual, std::fabs(prediction.federation.residual) / size);
    if (!prediction.generated) continue;
    ++totals.tokens;
    for (size_t i = 0; i < count; ++i) {
      totals.shares[i] += prediction.federation.specialists[i].share;
    }
    const int leader = leading_specialist(run, prediction);
    if (leader >= 0) ++totals.leading[static_cast<size_t>(leader)];
  }
  return totals;
}

bool has_told_shares(const Run& run, const SpecialistTotals& totals) {
  if (totals.tokens == 0 && !hidden_text(run).empty()) return false;
  return totals.told > 0 || totals.left_out == 0;
}

std::string federation_lines(const Run& run) {
  if (run.federation.specialists.empty()) return "";
  const SpecialistTotals totals = specialist_totals(run);
  const std::string combiner =
      fmt::format("combiner  {} of {} specialists", plain(run.federation.combiner),
                  run.federation.specialists.size());
  if (!has_told_shares(run, totals)) {
    std::string names;
    for (size_t i = 0; i < run.federation.specialists.size(); ++i) {
      names += (i == 0 ? "" : ", ") + name_of(run, i);
    }
    return combiner + "; their shares were left out or cannot be read\n          " + names + "\n";
  }
  const std::string some =
      totals.left_out == 0
          ? ""
          : fmt::format("; shares of {} predictions were left out or are encrypted",
                        totals.left_out);
  std::string text =
      fmt::format("{}; largest residual {:.1e}{}\n", combiner, totals.largest_residual, some);
  const double tokens = static_cast<double>(std::max<size_t>(totals.tokens, 1));
  const Colours colours = Colours::of_output();
  for (size_t i = 0; i < run.federation.specialists.size(); ++i) {
    PredictionRecord only;
    only.federation.specialists.resize(run.federation.specialists.size());
    for (size_t j = 0; j < only.federation.specialists.size(); ++j) {
      only.federation.specialists[j].share = only.federation.specialists[j].weight = i == j;
    }
    text += fmt::format("          {}{:<16}{} {} {:>9.3f}, leads {} of {} generated tokens\n",
                        leader_colour(run, only, colours), name_of(run, i), colours.off,
                        has_terms(run) ? "mean term" : "mean share", totals.shares[i] / tokens,
                        totals.leading[i], totals.tokens);
  }
  return text;
}

std::string share_text(const Run& run, const PredictionRecord& prediction) {
  std::string text;
  const auto& shares = prediction.federation.specialists;
  for (size_t i = 0; i < shares.size() && i < 8; ++i) {
    text += has_terms(run) ? fmt::format(" {} {:.2f}", name_of(run, i), shares[i].share)
                           : fmt::format(" {} {:.0f}%", name_of(run, i), 100 * shares[i].share);
  }
  return shares.size() > 8 ? text + " …" : text;
}

std::string leader_colour(const Run& run, const PredictionRecord& prediction,
                          const Colours& colours) {
  const int leader = leading_specialist(run, prediction);
  if (leader < 0) return "";
  const std::array<const char*, 5> all = {colours.blue, colours.green, colours.yellow, colours.red,
                                          colours.bold};
  return all[static_cast<size_t>(leader) % all.size()];
}

std::string logit_text(const Run& run, const vitrine::SpecialistShare& share, float logit) {
  const double value = double{logit};
  std::string text = fmt::format("    less its log-sum-exp, {:.4f}: log p {:.4f}",
                                 value - share.logprob, share.logprob);
  if (has_terms(run)) {
    return text + fmt::format("; {:.4f} times that in the joint\n", share.weight);
  }
  return text + fmt::format("; its share of the joint {:.4f}\n", share.share);
}

std::string shares_text(const Run& run, const PredictionRecord& prediction,
                        const Colours& colours) {
  const vitrine::FederationRecord& federation = prediction.federation;
  if (federation.specialists.empty()) return "";
  std::string text = fmt::format("  specialists, joint {:.6f} nats, residual {:.1e}\n",
                                 federation.joint, federation.residual);
  for (size_t i = 0; i < federation.specialists.size(); ++i) {
    const vitrine::SpecialistShare& share = federation.specialists[i];
    text += fmt::format("    {}{:<16}{} log p {:>10.4f}  weight {:>7.4f}  {} {:>9.4f}\n",
                        colours.blue, name_of(run, i), colours.off, share.logprob, share.weight,
                        has_terms(run) ? "term" : "share", share.share);
  }
  if (has_terms(run)) {
    text += fmt::format("    {:<16} {:>53.4f}\n", "-log Z", -federation.log_normaliser);
  }
  return text;
}

}  // namespace cli
