// vitrine audit export --html: one page that needs no network.
#include <fmt/format.h>

#include <cmath>

#include "audit.h"
#include "failure_text.h"
#include "federation_text.h"
#include "run_page.h"

namespace cli {

namespace {

using nlohmann::ordered_json;
using vitrine::TokenRecord;

/// A finite number, or null.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(std::round(value * 1e6) / 1e6) : ordered_json(nullptr);
}

/// A token's bytes as text; "#id" where there is no tokenizer, "…" where it was left out.
std::string text_of(const Run& run, int32_t token) {
  if (token < 0) return "…";
  if (run.tokenizer) {
    return token < run.tokenizer->vocab_size() ? run.tokenizer->token_bytes(token)
                                               : fmt::format("#{}", token);
  }
  const auto known = run.pieces.find(token);
  return known != run.pieces.end() ? known->second : fmt::format("#{} ", token);
}

ordered_json routes_of(const TokenRecord& record) {
  ordered_json layers = ordered_json::array();
  for (const vitrine::LayerRecord& layer : record.layers) {
    if (layer.routes.empty()) continue;
    ordered_json routes = ordered_json::array();
    for (const vitrine::RouteRecord& route : layer.routes) {
      routes.push_back({route.expert, number(double{route.weight})});
    }
    layers.push_back({layer.layer, std::move(routes)});
  }
  return layers;
}

/// A logit and its terms; null where it is no number.
ordered_json sum_json(const vitrine::AttributionRecord& attribution) {
  if (!std::isfinite(attribution.logit) || !std::isfinite(attribution.runner_up_logit)) {
    return nullptr;
  }
  ordered_json terms = ordered_json::array();
  const auto add = [&terms](std::string_view part, int layer, int expert, double value,
                            double other) {
    terms.push_back({part, layer, expert, std::isfinite(value) ? number(value) : ordered_json(0),
                     std::isfinite(other) ? number(other) : ordered_json(0)});
  };
  for (const vitrine::TermRecord& term : attribution.terms) {
    add(vitrine::term_kind_name(term.kind), term.layer, term.expert, double{term.value},
        double{term.runner_up});
  }
  add("rounding", -1, -1, double{attribution.rounding}, double{attribution.runner_up_rounding});
  return {
      {"logit", {number(double{attribution.logit}), number(double{attribution.runner_up_logit})}},
      {"terms", std::move(terms)}};
}

/// What was predicted from `record`, as the account of the token that followed.
void add_prediction(const Run& run, const TokenRecord& record, ordered_json& token) {
  const vitrine::PredictionRecord& prediction = record.prediction;
  token["lp"] = number(double{prediction.logprob});
  token["entropy"] = number(double{prediction.entropy});
  if (token["entropy"].is_null()) token["entropy"] = 0;
  if (prediction.sampled.candidates > 0) {
    token["sampler"] = {prediction.sampled.candidates,
                        number(double{prediction.sampled.probability})};
  }
  if (prediction.constraint.is_given()) {
    const vitrine::ConstraintDecision& constraint = prediction.constraint;
    token["constraint"] = {constraint.allowed, number(double{constraint.removed}),
                           constraint.first_ruled_out, constraint.is_limited, constraint.attempt};
  }
  ordered_json others = ordered_json::array();
  for (const vitrine::AlternativeRecord& other : prediction.alternatives) {
    if (std::isfinite(other.logprob)) {
      others.push_back({text_of(run, other.token), number(double{other.logprob})});
    }
  }
  token["others"] = std::move(others);
  const vitrine::FederationRecord& federation = prediction.federation;
  if (!federation.specialists.empty()) {
    ordered_json shares = ordered_json::array();
    for (const vitrine::SpecialistShare& share : federation.specialists) {
      shares.push_back({number(share.logprob), number(share.weight), number(share.share)});
    }
    token["shares"] = std::move(shares);
    token["leader"] = leading_specialist(run, prediction);
    token["normaliser"] = number(federation.log_normaliser);
    token["residual"] = federation.residual;
  }
  // One model's, or each specialist's.
  ordered_json sums = ordered_json::array();
  for (const vitrine::AttributionRecord* attribution : attributions_of(prediction)) {
    ordered_json sum = sum_json(*attribution);
    if (sum.is_null()) return;
    sums.push_back(std::move(sum));
    token["other"] = text_of(run, attribution->runner_up);
  }
  if (!sums.empty()) token["sums"] = std::move(sums);
}

ordered_json token_json(const Run& run, uint64_t sequence, int64_t position, int32_t id) {
  return {{"sequence", sequence},
          {"position", position},
          {"text", text_of(run, id)},
          {"made", false},
          {"lp", nullptr}};
}

/// Each token with the account of the pass that made it: that of the position before it.
ordered_json tokens_json(const Run& run) {
  ordered_json tokens = ordered_json::array();
  const TokenRecord* before = nullptr;
  const auto finish = [&](const TokenRecord* record) {  // what the last record of a sequence chose
    if (record == nullptr || !record->has_prediction || !record->prediction.generated) return;
    ordered_json token =
        token_json(run, record->sequence, record->position + 1, record->prediction.token);
    token["made"] = true;
    add_prediction(run, *record, token);
    token["routes"] = routes_of(*record);
    tokens.push_back(std::move(token));
  };
  for (const TokenRecord& record : run.records) {
    const bool follows = before != nullptr && before->sequence == record.sequence &&
                         before->position + 1 == record.position;
    if (before != nullptr && !follows) finish(before);
    ordered_json token = token_json(run, record.sequence, record.position, record.token);
    const bool is_made = follows && before->has_prediction && before->prediction.generated;
    token["made"] = is_made;
    if (follows && before->has_prediction) add_prediction(run, *before, token);
    token["routes"] = routes_of(is_made ? *before : record);
    tokens.push_back(std::move(token));
    before = &record;
  }
  finish(before);
  return tokens;
}

}  // namespace

std::string run_page(const Run& run) {
  ordered_json page;
  page["account"] = account_line(run);
  page["whole"] = page["account"].get<std::string>().starts_with("complete");
  page["facts"] = fmt::format(
      "{} ({}, {} layers, vocabulary of {}); {}, {} kernels, {}, {} threads; recorder {}, level "
      "{}; "
      "seed {}; stop: {}",
      plain(run.header.model_path), plain(run.header.architecture), run.header.num_layers,
      run.header.vocab_size, plain(run.header.device), plain(run.header.kernels),
      plain(run.header.isa), run.header.threads, run.mode, run.level, run.header.seed,
      run.stop_reason.empty() ? "unknown" : plain(run.stop_reason));
  std::string failures;
  for (const vitrine::ConstraintFailure& failure : run.failures) {
    failures += failure_text(failure, [&run](int32_t token) { return run.quoted(token); });
  }
  page["failures"] = failures;
  page["experts"] = ordered_json::array();
  for (size_t i = 0; i < run.uses.size(); ++i) {
    page["experts"].push_back({run.layer_numbers[i], run.uses[i]});
  }
  if (!run.federation.specialists.empty()) {
    const SpecialistTotals totals = specialist_totals(run);
    ordered_json specialists = ordered_json::array();
    for (size_t i = 0; i < run.federation.specialists.size(); ++i) {
      specialists.push_back(
          {run.federation.specialists[i], number(totals.shares[i]), totals.leading[i]});
    }
    page["federation"] = {{"combiner", run.federation.combiner},
                          {"shares", vitrine::share_kind_name(run.federation.shares)},
                          {"tokens", totals.tokens},
                          {"told", totals.told > 0 || totals.left_out == 0},
                          {"specialists", std::move(specialists)}};
  }
  page["tokens"] = tokens_json(run);
  std::string json = page.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  // Inside a script element: no log may end it.
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos; at += 6) {
    json.replace(at, 1, "\\u003c");
  }
  std::string text(kRunPage);
  constexpr std::string_view kPlace = "@RUN@";
  return text.replace(text.find(kPlace), kPlace.size(), json);
}

}  // namespace cli
