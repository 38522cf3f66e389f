// SPDX-License-Identifier: Apache-2.0
// vitrine audit show, top.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "audit.h"
#include "draft_text.h"
#include "failure_text.h"
#include "federation_text.h"
#include "hidden_values.h"

namespace cli {

namespace {

using vitrine::LayerRecord;
using vitrine::RouteRecord;
using vitrine::TokenRecord;

double probability(float logprob) { return std::exp(static_cast<double>(logprob)); }

/// "7" of "L3:7 62%": the slot with the largest weight, and its share of the layer's weights.
struct Leader {
  int32_t layer = 0, expert = -1;
  double share = 0;
};

Leader leader_of(const LayerRecord& layer) {
  Leader leader{layer.layer, -1, 0};
  double total = 0;
  for (const RouteRecord& route : layer.routes) {
    const double weight = std::fabs(static_cast<double>(route.weight));
    total += weight;
    if (leader.expert < 0 || weight > leader.share) {
      leader.expert = route.expert;
      leader.share = weight;
    }
  }
  if (total > 0) leader.share /= total;
  return leader;
}

std::string header_text(const Run& run) {
  std::string text = fmt::format(
      "model     {} ({}, {} layers, vocabulary of {})\nruntime   {}, {} kernels, {}, {} threads\n"
      "recorder  {}, level {}; seed {}\n",
      plain(run.header.model_path), plain(run.header.architecture), run.header.num_layers,
      run.header.vocab_size, plain(run.header.device), plain(run.header.kernels),
      plain(run.header.isa), run.header.threads, run.mode, run.level, run.header.seed);
  if (run.started_unix_ns > 0) {
    text += fmt::format("started   {}{}\n", vitrine::utc_text(run.started_unix_ns),
                        run.header.host_name.empty() ? "" : " on " + plain(run.header.host_name));
  }
  if (!run.engine_build.empty()) text += fmt::format("build     {}\n", plain(run.engine_build));
  for (const auto& [name, options] :
       {std::pair("engine", &run.header.engine), std::pair("sampler", &run.header.sampler),
        std::pair("guesses", &run.header.speculation)}) {
    std::string all;
    for (const auto& [option, value] : *options) {
      all += fmt::format("{}{}={}", all.empty() ? "" : " ", plain(option), plain(value));
    }
    if (!all.empty()) text += fmt::format("{:<9} {}\n", name, all);
  }
  text += federation_lines(run) + hidden_line(run);
  if (run.report && !run.report->header.trace_id.empty()) {
    text += fmt::format("trace     {}\n", plain(run.report->header.trace_id));
  }
  return text;
}

/// The first eight layers' leading experts.
std::string route_text(const TokenRecord& record) {
  std::string text;
  size_t shown = 0;
  for (const LayerRecord& layer : record.layers) {
    if (layer.routes.empty()) continue;
    if (++shown > 8) return text + " …";
    const Leader leader = leader_of(layer);
    text += leader.expert < 0
                ? fmt::format(" L{}:-", layer.layer)
                : fmt::format(" L{}:{} {:.0f}%", layer.layer, leader.expert, 100 * leader.share);
  }
  return text;
}

std::string token_line(const Run& run, const TokenRecord& record, const Colours& colours) {
  const vitrine::PredictionRecord& prediction = record.prediction;
  const bool is_federated = !prediction.federation.specialists.empty();
  const std::string colour = is_federated ? leader_colour(run, prediction, colours)
                                          : colours.of_surprise(prediction.logprob);
  return fmt::format("{:>6} {}{:<16}{} p={:<8.4f} H={:<6.3f}{}\n", record.position + 1, colour,
                     run.quoted(prediction.token), colours.off, probability(prediction.logprob),
                     prediction.entropy,
                     is_federated ? share_text(run, prediction) : route_text(record));
}

/// `is_redacted`: what is not there was left out.
std::string layers_text(const TokenRecord& record, bool is_redacted, const Colours& colours) {
  std::string text;
  for (const LayerRecord& layer : record.layers) {
    text += is_redacted && std::isnan(layer.residual_norm)
                ? fmt::format("  layer {:<3} norm left out  ", layer.layer)
                : fmt::format("  layer {:<3} norm {:<10.4f}", layer.layer, layer.residual_norm);
    for (const RouteRecord& route : layer.routes) {
      text += route.expert < 0 ? " left out"
                               : fmt::format(" {}expert {}{} {:.4f}", colours.blue, route.expert,
                                             colours.off, route.weight);
    }
    if (layer.routes.empty()) text += " dense";
    text += "\n";
    if (!layer.selection.empty()) {
      text += fmt::format("            chosen by {} score + correction",
                          vitrine::router_kind_name(layer.router));
      for (const vitrine::SelectionRecord& of : layer.selection) {
        text += std::isnan(of.score) && is_redacted
                    ? " left out"
                    : fmt::format(" {:.4f}{:+.4f}", of.score, of.key - of.score);
      }
      text += "\n";
    }
    if (layer.router_probs.empty()) continue;
    text += "            router";
    for (const float value : layer.router_probs) text += fmt::format(" {:.3f}", value);
    text += "\n";
  }
  return text;
}

/// A term's bar, from the middle: to the left where it lowers the logit.
std::string term_bar(double value, double largest) {
  constexpr int kHalf = 16;
  const int length =
      static_cast<int>(std::lround(kHalf * std::min(1.0, std::fabs(value) / largest)));
  std::string bar;
  for (int i = -kHalf; i < kHalf; ++i) {
    const bool is_filled = value < 0 ? i >= -length && i < 0 : i >= 0 && i < length;
    bar += is_filled ? "█" : i == 0 ? "▏" : " ";
  }
  return bar;
}

/// A logit as a sum, term by term (docs/attribution.md); `whose`: " by essays" in a federation.
std::string attribution_text(const Run& run, const vitrine::PredictionRecord& prediction,
                             const vitrine::AttributionRecord& attribution,
                             const std::string& whose, const Colours& colours) {
  double largest = 1e-30;
  for (const vitrine::TermRecord& term : attribution.terms) {
    largest = std::max(largest, std::fabs(double{term.value}));
  }
  std::string text = fmt::format("  logit {:.4f} of {}{} as a sum; beside it {}'s, {:.4f}\n",
                                 attribution.logit, run.quoted(prediction.token), whose,
                                 run.quoted(attribution.runner_up), attribution.runner_up_logit);
  const auto line = [&](const std::string& name, double value, double other) {
    text += fmt::format("    {:<22}{:>10.4f} {}{}{} {:>10.4f}\n", name, value,
                        value < 0 ? colours.red : colours.blue, term_bar(value, largest),
                        colours.off, other);
  };
  for (const vitrine::TermRecord& term : attribution.terms) {
    std::string name(vitrine::term_kind_name(term.kind));
    if (term.expert >= 0) name += fmt::format(" {}", term.expert);
    if (term.layer >= 0) name = fmt::format("layer {} {}", term.layer, name);
    line(name, term.value, term.runner_up);
  }
  line("rounding", attribution.rounding, attribution.runner_up_rounding);
  text += fmt::format(
      "    direct logit attribution, each norm's scale frozen at its value{}: recorded "
      "arithmetic, not a reason\n",
      run.report && run.level == "standard" ? ", terms kept to 11 bits" : "");
  return text;
}

/// One model's logit, or that of each specialist with what it comes to in the joint.
std::string attributions_text(const Run& run, const vitrine::PredictionRecord& prediction,
                              const Colours& colours) {
  if (!prediction.attribution.terms.empty()) {
    return attribution_text(run, prediction, prediction.attribution, "", colours);
  }
  const vitrine::FederationRecord& federation = prediction.federation;
  std::string text;
  for (size_t i = 0; i < federation.attributions.size(); ++i) {
    const vitrine::AttributionRecord& attribution = federation.attributions[i];
    const std::string name = plain(run.federation.specialists[i]);
    text += attribution_text(run, prediction, attribution, " by " + name, colours);
    if (i >= federation.specialists.size()) continue;  // left out
    text += logit_text(run, federation.specialists[i], attribution.logit);
  }
  return text;
}

/// Their sizes only: the values are for other tools (audit export).
std::string hidden_states_text(const Run& run, const TokenRecord& record) {
  const std::vector<std::string>& specialists = run.federation.specialists;
  const auto place = [&](int layer) {
    if (static_cast<size_t>(layer) < record.layers.size()) {
      return fmt::format("entering layer {}", layer);
    }
    const size_t of = static_cast<size_t>(layer) - record.layers.size();
    if (specialists.empty()) return fmt::format("leaving the last, layer {}", layer);
    return fmt::format("leaving the last layer of {}, number {}",
                       of < specialists.size() ? plain(specialists[of]) : "the base", layer);
  };
  std::string text;
  for (const vitrine::HiddenStateRecord& state : record.hidden_states) {
    double square = 0;
    for (const float value : state.values) square += double{value} * double{value};
    text += fmt::format("  hidden state {}: {} values, norm {:.4f}\n", place(state.layer),
                        state.values.size(), std::sqrt(square));
  }
  return text;
}

std::string sampler_text(const vitrine::PredictionRecord& prediction) {
  const vitrine::SampleDecision& sampled = prediction.sampled;
  if (sampled.candidates == 0) return "";
  if (sampled.candidates == 1) return "  the sampler left it alone to choose from\n";
  return fmt::format("  the sampler left {} tokens to choose from, and it p = {:.4f} among them\n",
                     sampled.candidates, sampled.probability);
}

std::string constraint_text(const Run& run, const vitrine::PredictionRecord& prediction) {
  const vitrine::ConstraintDecision& constraint = prediction.constraint;
  if (constraint.allowed == 0) {
    return constraint.attempt > 0
               ? fmt::format("  no mask: attempt {} after a deadlock\n", constraint.attempt)
               : "";
  }
  std::string text;
  if (constraint.attempt > 0) {
    text = fmt::format("  attempt {}, after an answer that was not accepted\n", constraint.attempt);
  }
  text += constraint.is_forced()
              ? std::string("  the constraint left no other token")
              : fmt::format("  the constraint allowed {} tokens", constraint.allowed);
  text += fmt::format(" and took {:.2f} % of the probability away ({:.1f} µs{})\n",
                      100 * double{constraint.removed}, constraint.mask_microseconds,
                      constraint.is_limited ? "; the token limit ruled out more" : "");
  if (constraint.first_ruled_out && !prediction.alternatives.empty()) {
    const vitrine::AlternativeRecord& first = prediction.alternatives[0];
    text += fmt::format("  the model would have said {} (p = {:.4f})\n", run.quoted(first.token),
                        probability(first.logprob));
  }
  return text;
}

std::string account_of(const Run& run, size_t index, const Colours& colours) {
  const TokenRecord& record = run.records[index];
  std::string text =
      fmt::format("{}sequence {}, position {}: {}{}\n", colours.bold, record.sequence,
                  record.position, run.quoted(record.token), colours.off) +
      layers_text(record, is_redacted(run, index), colours) + hidden_states_text(run, record);
  if (may_hide_prediction(run, index)) {
    return text +
           "  no prediction from it can be read: predictions were left out or are encrypted\n";
  }
  if (!record.has_prediction) return text + "  no prediction was made from it\n";
  const vitrine::PredictionRecord& prediction = record.prediction;
  text += fmt::format("  {} {}{}{}  p = {:.4f} ({:.4f} nats), entropy {:.4f} nats\n",
                      prediction.generated ? "chose" : "prompt goes on with", colours.bold,
                      run.quoted(prediction.token), colours.off, probability(prediction.logprob),
                      prediction.logprob, prediction.entropy) +
          constraint_text(run, prediction) + sampler_text(prediction);
  for (const vitrine::AlternativeRecord& other : prediction.alternatives) {
    text += fmt::format("    {:<16} {:6.2f} %\n", run.quoted(other.token),
                        100 * probability(other.logprob));
  }
  return text + attributions_text(run, prediction, colours) + shares_text(run, prediction, colours);
}

/// The expert with the largest term, and that term's share of all terms' sizes.
Leader leading_term(const vitrine::AttributionRecord& attribution, int32_t only_layer,
                    int32_t only_expert) {
  Leader leader;
  double total = 0, largest = 0;
  for (const vitrine::TermRecord& term : attribution.terms) {
    total += std::fabs(double{term.value});
    if (term.expert < 0 || double{term.value} <= largest) continue;
    if (only_layer >= 0 && (term.layer != only_layer || term.expert != only_expert)) continue;
    largest = double{term.value};
    leader.layer = term.layer;
    leader.expert = term.expert;
  }
  if (total > 0) leader.share = largest / total;
  return leader;
}

struct Hanging {
  const TokenRecord* record = nullptr;
  Leader leader;
};

}  // namespace

int run_audit_show(const AuditArguments& arguments) {
  const Run run = load_run(arguments.run, arguments.model, arguments.decrypt, arguments.most_bytes);
  const Colours colours = Colours::of_output();
  const int code = is_complete(run) ? 0 : 1;
  const std::string account = account_line(run);
  const bool is_whole = account.starts_with("complete") || account.starts_with("not sealed");
  std::string text =
      fmt::format("{}{}{}\n", is_whole ? colours.green : colours.red, account, colours.off);
  if (arguments.position >= 0) {
    bool is_found = false;
    for (size_t i = 0; i < run.records.size(); ++i) {
      if (run.records[i].position != arguments.position) continue;
      is_found = true;
      text += account_of(run, i, colours);
    }
    if (!is_found) {
      refuse(fmt::format("--position {}: {} has no record of it ({} records)", arguments.position,
                         arguments.run, run.records.size()));
    }
    write_out(text + drafts_text_at(run, arguments.position));
    return code;
  }
  text += header_text(run);
  if (run.level == "counters") {
    write_out(text + "tokens    none at level counters; see vitrine audit stats\n");
    return code;
  }
  // A copy may have been made without the shares.
  const bool has_shares = std::ranges::any_of(run.records, [](const TokenRecord& record) {
    return !record.prediction.federation.specialists.empty();
  });
  text +=
      !has_shares
          ? "tokens    position, token, probability, entropy (nats), each layer's leading expert "
            "with its share of the gate weights\n"
          : "tokens    position, token, probability, entropy (nats), each specialist's share; "
            "coloured by the leading one\n";
  int shown = 0;
  int32_t attempt = 0;
  size_t generated = 0;
  for (const TokenRecord& record : run.records) {
    if (!record.has_prediction || !record.prediction.generated) continue;
    ++generated;
    if (arguments.limit > 0 && shown >= arguments.limit) continue;
    ++shown;
    if (const int32_t now = record.prediction.constraint.attempt; now != attempt) {
      attempt = now;
      text += fmt::format("attempt {}\n", attempt);
    }
    text += token_line(run, record, colours);
  }
  if (generated > static_cast<size_t>(shown)) {
    text += fmt::format("{}       … {} more; -n 0 shows all{}\n", colours.dim,
                        generated - static_cast<size_t>(shown), colours.off);
  }
  const size_t most_failures =
      arguments.limit > 0 ? static_cast<size_t>(arguments.limit) : run.failures.size();
  for (size_t i = 0; i < std::min(run.failures.size(), most_failures); ++i) {
    text += failure_text(run.failures[i], [&run](int32_t token) { return run.quoted(token); });
  }
  if (run.failures.size() > most_failures) {
    text += fmt::format("{}… {} more failures; -n 0 shows all{}\n", colours.dim,
                        run.failures.size() - most_failures, colours.off);
  }
  text += drafts_text(run);
  const uint64_t chose = counted_predictions(run).first;
  text +=
      fmt::format("{} records, {} of them chose a token{}; stop: {}\n", run.records.size(), chose,
                  chose > generated || hides_predictions(run)
                      ? fmt::format(" ({} can be read: predictions were left out or are "
                                    "encrypted)",
                                    generated)
                      : "",
                  run.stop_reason.empty() ? "unknown" : plain(run.stop_reason));
  write_out(text);
  return code;
}

int run_audit_top(const AuditArguments& arguments) {
  int32_t only_layer = -1, only_expert = -1;
  if (!arguments.expert.empty()) {
    const char* end = arguments.expert.data() + arguments.expert.size();
    const auto layer = std::from_chars(arguments.expert.data(), end, only_layer);
    const bool has_colon = layer.ec == std::errc() && layer.ptr < end && *layer.ptr == ':';
    const auto expert = has_colon ? std::from_chars(layer.ptr + 1, end, only_expert) : layer;
    if (!has_colon || expert.ec != std::errc() || expert.ptr != end || only_layer < 0 ||
        only_expert < 0) {
      refuse(fmt::format("--expert {}: expected LAYER:EXPERT, as 2:5", arguments.expert));
    }
  }
  const Run run = load_run(arguments.run, arguments.model, arguments.decrypt, arguments.most_bytes);
  require_tokens(run, "top");
  if (only_layer >= 0) {
    const auto layer = std::ranges::find(run.layer_numbers, static_cast<uint32_t>(only_layer));
    if (layer == run.layer_numbers.end()) {
      refuse(fmt::format("--expert {}: the log has no layer {} with experts", arguments.expert,
                         only_layer));
    }
    const auto index = static_cast<size_t>(layer - run.layer_numbers.begin());
    const size_t experts = index < run.uses.size() ? run.uses[index].size() : 0;
    if (static_cast<size_t>(only_expert) >= experts) {
      refuse(fmt::format("--expert {}: layer {} has experts 0 to {}", arguments.expert, only_layer,
                         static_cast<int64_t>(experts) - 1));
    }
  }
  const Colours colours = Colours::of_output();
  std::vector<Hanging> found;
  bool is_attributed = false;
  for (const TokenRecord& record : run.records) {
    if (!record.has_prediction || !record.prediction.generated) continue;
    Hanging best{&record, {}};
    // In a federation a layer's number says whose expert it is.
    const auto attributions = attributions_of(record.prediction);
    if (!attributions.empty()) {
      is_attributed = true;
      for (const vitrine::AttributionRecord* attribution : attributions) {
        const Leader leader = leading_term(*attribution, only_layer, only_expert);
        if (leader.expert >= 0 && leader.share > best.leader.share) best.leader = leader;
      }
      if (best.leader.expert >= 0 && best.leader.share > 0) found.push_back(best);
      continue;
    }
    for (const LayerRecord& layer : record.layers) {
      if (only_layer >= 0 && layer.layer != only_layer) continue;
      Leader leader = leader_of(layer);
      if (only_expert >= 0 && leader.expert != only_expert) continue;
      if (leader.expert >= 0 && leader.share > best.leader.share) best.leader = leader;
    }
    if (best.leader.expert >= 0 && best.leader.share > 0) found.push_back(best);
  }
  std::stable_sort(found.begin(), found.end(), [](const Hanging& a, const Hanging& b) {
    return a.leader.share > b.leader.share;
  });
  if (found.size() > static_cast<size_t>(arguments.limit)) {
    found.resize(static_cast<size_t>(arguments.limit));
  }
  std::string text =
      account_line(run) +
      (is_attributed ? "\nshare of one expert's term among the sizes of all terms of the logit"
                     : "\nshare of a layer's gate weights that one expert had") +
      ", position, token, its probability\n";
  for (const Hanging& one : found) {
    text += fmt::format("{:6.2f} %  L{}:{:<5} {:>6} {}{:<16}{} p={:.4f}\n", 100 * one.leader.share,
                        one.leader.layer, one.leader.expert, one.record->position + 1,
                        colours.of_surprise(one.record->prediction.logprob),
                        run.quoted(one.record->prediction.token), colours.off,
                        probability(one.record->prediction.logprob));
  }
  if (found.empty()) {
    const std::string hidden = hidden_line(run);
    text += hidden + (hidden.empty() ? "no generated token has a route to it\n"
                                     : "no generated token with a route to it can be read\n");
  }
  write_out(text);
  return 0;
}

}  // namespace cli
