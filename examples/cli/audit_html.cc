// SPDX-License-Identifier: Apache-2.0
// vitrine audit export --html: one page that needs no network.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "audit.h"
#include "failure_text.h"
#include "federation_text.h"
#include "hidden_values.h"
#include "page_facts.h"
#include "run_page.h"

namespace cli {

namespace {

using nlohmann::ordered_json;
using vitrine::TokenRecord;

/// A finite number, or null.
ordered_json finite_number(double value) {
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
      routes.push_back({route.expert, finite_number(double{route.weight})});
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
    terms.push_back({part, layer, expert,
                     std::isfinite(value) ? finite_number(value) : ordered_json(0),
                     std::isfinite(other) ? finite_number(other) : ordered_json(0)});
  };
  for (const vitrine::TermRecord& term : attribution.terms) {
    add(vitrine::term_kind_name(term.kind), term.layer, term.expert, double{term.value},
        double{term.runner_up});
  }
  add("rounding", -1, -1, double{attribution.rounding}, double{attribution.runner_up_rounding});
  return {{"logit",
           {finite_number(double{attribution.logit}),
            finite_number(double{attribution.runner_up_logit})}},
          {"terms", std::move(terms)}};
}

/// What was predicted from `record`, as the account of the token that followed.
void add_prediction(const Run& run, const TokenRecord& record, ordered_json& token) {
  const vitrine::PredictionRecord& prediction = record.prediction;
  token["lp"] = finite_number(double{prediction.logprob});
  token["entropy"] = finite_number(double{prediction.entropy});
  if (token["entropy"].is_null()) token["entropy"] = 0;
  if (prediction.sampled.candidates > 0) {
    token["sampler"] = {prediction.sampled.candidates,
                        finite_number(double{prediction.sampled.probability})};
  }
  if (prediction.constraint.is_given()) {
    const vitrine::ConstraintDecision& constraint = prediction.constraint;
    token["constraint"] = {constraint.allowed, finite_number(double{constraint.removed}),
                           constraint.first_ruled_out, constraint.is_limited, constraint.attempt};
  }
  ordered_json others = ordered_json::array();
  for (const vitrine::AlternativeRecord& other : prediction.alternatives) {
    if (std::isfinite(other.logprob)) {
      others.push_back({text_of(run, other.token), finite_number(double{other.logprob})});
    }
  }
  token["others"] = std::move(others);
  const vitrine::FederationRecord& federation = prediction.federation;
  if (!federation.specialists.empty()) {
    ordered_json shares = ordered_json::array();
    for (const vitrine::SpecialistShare& share : federation.specialists) {
      shares.push_back(
          {finite_number(share.logprob), finite_number(share.weight), finite_number(share.share)});
    }
    token["shares"] = std::move(shares);
    token["leader"] = leading_specialist(run, prediction);
    token["normaliser"] = finite_number(federation.log_normaliser);
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

/// A token that stands for no text, such as <|im_start|>.
bool is_special(const Run& run, int32_t id) {
  return run.tokenizer && id >= 0 && id < run.tokenizer->vocab_size() &&
         run.tokenizer->is_special(id);
}

ordered_json token_json(const Run& run, uint64_t sequence, int64_t position, int32_t id) {
  ordered_json token = {{"sequence", sequence},
                        {"position", position},
                        {"text", text_of(run, id)},
                        {"made", false},
                        {"lp", nullptr}};
  if (is_special(run, id)) token["special"] = true;
  return token;
}

/// How many bytes a text's last character lacks: it may go on in the next token.
size_t missing_bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 && byte < 0xF5   ? 4
                          : byte >= 0xE0 && byte < 0xF0 ? 3
                          : byte >= 0xC2 && byte < 0xE0 ? 2
                                                        : 1;
    return length > back ? length - back : 0;
  }
  return 0;
}

/// A character whose bytes are several tokens' stands whole with the first of them.
void join_characters(ordered_json& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto& text = tokens[i]["text"].get_ref<std::string&>();
    const size_t missing = missing_bytes(text);
    std::string rest;
    for (size_t j = i + 1; rest.size() < missing && j < tokens.size(); ++j) {
      const bool follows = tokens[j]["sequence"] == tokens[i]["sequence"] &&
                           tokens[j]["position"] == tokens[j - 1]["position"].get<int64_t>() + 1;
      const auto& next = tokens[j]["text"].get_ref<const std::string&>();
      size_t count = 0;
      while (count < next.size() && rest.size() + count < missing &&
             (static_cast<unsigned char>(next[count]) & 0xC0) == 0x80) {
        ++count;
      }
      if (!follows || count == 0) break;
      rest += next.substr(0, count);
      if (count < next.size()) break;
    }
    if (missing == 0 || rest.size() < missing) continue;
    text += rest;
    for (size_t j = i + 1; !rest.empty(); ++j) {
      auto& next = tokens[j]["text"].get_ref<std::string&>();
      const size_t count = std::min(rest.size(), next.size());
      next.erase(0, count);
      rest.erase(0, count);
      if (next.empty()) tokens[j]["part"] = true;
    }
  }
}

/// Each token with the account of the pass that made it: that of the position before it.
ordered_json tokens_json(const Run& run) {
  ordered_json tokens = ordered_json::array();
  const bool has_hidden = hides_predictions(run);
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
    // Whether it was chosen or given cannot be told.
    if (has_hidden && follows && !before->has_prediction &&
        is_redacted(run, static_cast<size_t>(before - run.records.data()))) {
      token["hidden"] = true;
    }
    token["routes"] = routes_of(is_made ? *before : record);
    tokens.push_back(std::move(token));
    before = &record;
  }
  finish(before);
  join_characters(tokens);
  return tokens;
}

/// Where a sequence comes from, where the page shows several.
std::string sequence_text(const Run& run, uint64_t sequence) {
  std::string text = fmt::format("sequence {}", sequence);
  for (const auto& [record, event] : run.events) {
    if (event.kind != vitrine::VtrEvent::Kind::kForked || event.sequence != sequence) continue;
    text += fmt::format(", goes on from sequence {} at position {}", event.source, event.count);
    break;
  }
  return text;
}

/// Who wrote a token: the prompt, the model, or that cannot be told.
const char* kind_of(const ordered_json& token) {
  return token["made"].get<bool>() ? "Answer" : token.contains("hidden") ? "Not told" : "Prompt";
}

/// Runs of tokens that follow each other and were written by one, each with its name.
ordered_json segments_json(const Run& run, const ordered_json& tokens) {
  ordered_json segments = ordered_json::array();
  std::map<std::string, int> counts;  // by kind
  const bool has_several = std::ranges::any_of(
      tokens, [&](const auto& token) { return token["sequence"] != tokens[0]["sequence"]; });
  for (size_t i = 0; i < tokens.size(); ++i) {
    const char* kind = kind_of(tokens[i]);
    const bool follows = i > 0 && tokens[i]["sequence"] == tokens[i - 1]["sequence"] &&
                         tokens[i]["position"] == tokens[i - 1]["position"].get<int64_t>() + 1;
    if (follows && segments.back()["kind"] == kind) {
      ++segments.back()["count"].get_ref<ordered_json::number_integer_t&>();
      continue;
    }
    std::string note;
    if (has_several && (i == 0 || tokens[i]["sequence"] != tokens[i - 1]["sequence"])) {
      note = sequence_text(run, tokens[i]["sequence"].get<uint64_t>());
    } else if (i > 0 && !follows) {
      note = fmt::format("from position {} on", tokens[i]["position"].get<int64_t>());
    }
    segments.push_back({{"kind", kind},
                        {"label", fmt::format("{} {}", kind, ++counts[kind])},
                        {"note", note},
                        {"first", i},
                        {"count", int64_t{1}}});
  }
  for (ordered_json& segment : segments) {  // no number where there is no second one
    if (counts[segment["kind"].get<std::string>()] == 1) segment["label"] = segment["kind"];
  }
  return segments;
}

}  // namespace

std::string run_page(const Run& run) {
  ordered_json page;
  const PageVerdict verdict = page_verdict(run);
  page["verdict"] = {{"kind", verdict.kind}, {"text", verdict.text}};
  page["facts"] = ordered_json::array();
  for (const PageFact& fact : page_facts(run)) {
    page["facts"].push_back(
        {{"label", fact.label}, {"text", fact.text}, {"details", fact.details}});
  }
  std::string failures;
  for (const vitrine::ConstraintFailure& failure : run.failures) {
    failures += failure_text(failure, [&run](int32_t token) { return run.quoted(token); });
  }
  page["failures"] = failures;
  page["experts"] = ordered_json::array();
  page["hidden_layers"] = ordered_json::array();
  for (size_t i = 0; i < run.uses.size(); ++i) {
    page["experts"].push_back({run.layer_numbers[i], run.uses[i]});
    if (!run.records.empty() && num_hidden_routes(run, i) == run.records.size()) {
      page["hidden_layers"].push_back(run.layer_numbers[i]);
    }
  }
  if (!run.federation.specialists.empty()) {
    const SpecialistTotals totals = specialist_totals(run);
    ordered_json specialists = ordered_json::array();
    for (size_t i = 0; i < run.federation.specialists.size(); ++i) {
      specialists.push_back({plain(run.federation.specialists[i]), finite_number(totals.shares[i]),
                             totals.leading[i]});
    }
    page["federation"] = {{"combiner", plain(run.federation.combiner)},
                          {"shares", vitrine::share_kind_name(run.federation.shares)},
                          {"tokens", totals.tokens},
                          {"told", has_told_shares(run, totals)},
                          {"specialists", std::move(specialists)}};
  }
  page["tokens"] = tokens_json(run);
  page["segments"] = segments_json(run, page["tokens"]);
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
