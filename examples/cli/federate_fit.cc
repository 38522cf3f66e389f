// SPDX-License-Identifier: Apache-2.0
// vitrine federate fit: weights by maximum likelihood.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "audit_run.h"
#include "federate.h"
#include "product_rows.h"

namespace cli {

namespace {

using nlohmann::ordered_json;
using Kind = vitrine::CombinerSpec::Kind;

struct FitArguments : TextArguments {
  std::string out, combiner;
  double held_out = 0.1, penalty = 1e-3;
  int memory_mib = 512;
};

void add_to(vitrine::FitData& data, const ScoredToken& token, size_t specialists) {
  data.num_specialists = specialists;
  for (const vitrine::SpecialistShare& share : token.shares) {
    data.logprobs.push_back(static_cast<float>(share.logprob));
  }
  const std::span<const float> state = token.hidden_state;
  data.hidden_size = static_cast<int64_t>(state.size());
  data.hidden_states.insert(data.hidden_states.end(), state.begin(), state.end());
}

/// The file's weights where it has a combiner of this kind, else the same for all.
vitrine::CombinerSpec weights_before(const vitrine::FederationSpec& spec, Kind kind) {
  if (spec.combiner.kind == kind) return spec.combiner;
  vitrine::CombinerSpec same;
  same.kind = kind;
  const size_t count = spec.specialists.size();
  same.weights.assign(count, 1.0 / static_cast<double>(count));
  return same;
}

vitrine::CombinerSpec gate_from(const vitrine::CombinerSpec& mixture, int64_t hidden_size) {
  vitrine::CombinerSpec gate;
  gate.kind = Kind::kGate;
  gate.hidden_size = hidden_size;
  gate.gate.assign(mixture.weights.size() * static_cast<size_t>(hidden_size), 0.0F);
  for (const double weight : mixture.weights) {
    gate.bias.push_back(static_cast<float>(std::log(std::max(weight, 1e-6))));
  }
  return gate;
}

ordered_json likelihoods(const vitrine::CombinerSpec& before, const vitrine::CombinerSpec& mixture,
                         const vitrine::CombinerSpec& after, const vitrine::FitData& data,
                         const std::vector<std::string>& names) {
  ordered_json json = {{"tokens", data.num_tokens()},
                       {"before", vitrine::mean_log_likelihood(before, data)},
                       {"mixture", vitrine::mean_log_likelihood(mixture, data)},
                       {"after", vitrine::mean_log_likelihood(after, data)}};
  for (size_t i = 0; i < names.size(); ++i) {
    double sum = 0;
    for (size_t token = 0; token < data.num_tokens(); ++token) {
      sum += double{data.logprobs[token * names.size() + i]};
    }
    json["specialists"][names[i]] = sum / static_cast<double>(data.num_tokens());
  }
  return json;
}

/// Mean log-likelihoods of the parts that a product was fitted on and judged by.
ordered_json likelihoods(const vitrine::CombinerSpec& before, const vitrine::CombinerSpec& after,
                         const vitrine::ProductFitData& data,
                         const std::vector<std::string>& names) {
  ordered_json json = {{"tokens", data.tokens.size()},
                       {"before", vitrine::mean_log_likelihood(before, data)},
                       {"after", vitrine::mean_log_likelihood(after, data)}};
  const size_t count = names.size();
  for (size_t i = 0; i < count; ++i) {
    double sum = 0;
    for (size_t token = 0; token < data.tokens.size(); ++token) {
      const auto seen = static_cast<size_t>(data.tokens[token]);
      sum += double{data.logprobs[(token * count + i) * data.vocab_size + seen]};
    }
    json["specialists"][names[i]] = sum / static_cast<double>(data.tokens.size());
  }
  return json;
}

/// How long a fit took.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

 private:
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

/// A fit under way: what is read, and what comes of it.
struct Fit {
  vitrine::FederationSpec spec;
  ScoredTexts texts;
  Stopwatch watch;
  double scoring_seconds = 0;
  vitrine::CombinerSpec fitted;
  std::vector<double> weights;  // to show: of a gate those of the best mixture
  ordered_json train, held_out;
  ordered_json more = ordered_json::object();

  std::vector<std::string> names() const { return names_of(spec); }
};

void fit_on_shares(const FitArguments& arguments, bool wants_gate, Fit& fit) {
  const size_t count = fit.spec.specialists.size();
  vitrine::CombinerSpec before = weights_before(fit.spec, Kind::kMixture);
  const vitrine::CombinerSpec of_the_file = fit.spec.combiner;
  fit.spec.combiner = before;
  if (wants_gate) {
    const auto config = vitrine::read_model_facts(open_model(fit.spec.specialists[0].model));
    fit.spec.combiner = gate_from(before, config.hidden_size);
    const bool has_gate =
        of_the_file.kind == Kind::kGate && of_the_file.hidden_size == config.hidden_size;
    if (has_gate) before = of_the_file;
  }
  vitrine::FitData train, held_out;
  {
    const auto federation =
        vitrine::Federation::load(fit.spec, text_options(arguments.device, arguments.window));
    catch_interrupts();
    score_texts(*federation, fit.texts, arguments.window, [&](const ScoredToken& token) {
      add_to(is_held_out(token.window, arguments.held_out) ? held_out : train, token, count);
    });
    release_interrupts(kFederateCancelled);
  }
  if (held_out.num_tokens() == 0 || train.num_tokens() == 0) {
    refuse(
        fmt::format("the texts have {} tokens in windows of {}, too few to hold some out; "
                    "expected more text or a smaller --window",
                    fit.texts.num_tokens(), arguments.window));
  }
  fit.scoring_seconds = fit.watch.seconds();
  const vitrine::CombinerSpec mixture = vitrine::fit_mixture(train);
  fit.weights = mixture.weights;
  fit.fitted = wants_gate ? vitrine::fit_gate(train, gate_from(mixture, train.hidden_size),
                                              arguments.penalty)
                          : mixture;
  if (wants_gate) fit.more["penalty"] = arguments.penalty;
  fit.train = likelihoods(before, mixture, fit.fitted, train, fit.names());
  fit.held_out = likelihoods(before, mixture, fit.fitted, held_out, fit.names());
}

void fit_on_rows(const FitArguments& arguments, Fit& fit) {
  const vitrine::CombinerSpec before = weights_before(fit.spec, Kind::kProduct);
  fit.spec.combiner = before;
  const ProductRows rows =
      score_product_rows(fit.spec, fit.texts, arguments.device, arguments.window,
                         arguments.held_out, static_cast<uint64_t>(arguments.memory_mib) << 20);
  fit.scoring_seconds = fit.watch.seconds();
  fit.fitted = vitrine::fit_product(rows.train, before);
  fit.weights = fit.fitted.weights;
  fit.more["one_window_in"] = rows.every;
  fit.train = likelihoods(before, fit.fitted, rows.train, fit.names());
  fit.held_out = likelihoods(before, fit.fitted, rows.held_out, fit.names());
}

ordered_json manifest_of(const FitArguments& arguments, const Fit& fit,
                         const std::vector<std::string>& members) {
  ordered_json json;
  json["build"] = vitrine::engine_build();
  json["window"] = arguments.window;
  json.update(fit.more);
  for (size_t i = 0; i < fit.texts.names.size(); ++i) {
    json["data"].push_back({{"file", fit.texts.names[i]},
                            {"sha256", fit.texts.hashes[i]},
                            {"tokens", fit.texts.ids[i].size()}});
  }
  const std::vector<std::string> names = fit.names();
  for (size_t i = 0; i < names.size(); ++i) json["members"][names[i]] = members[i];
  json["log_likelihood"] = {{"train", fit.train}, {"held_out", fit.held_out}};
  return json;
}

std::string fit_text(const Fit& fit, double fit_seconds) {
  const auto perplexity = [&](const char* name) {
    return std::exp(-fit.held_out[name].get<double>());
  };
  std::string text = fmt::format(
      "{} tokens fitted on, {} held out; scored in {:.1f} s, fitted in {:.1f} s\n"
      "perplexity of what was held out: {:.3f} before, ",
      fit.train["tokens"].get<size_t>(), fit.held_out["tokens"].get<size_t>(), fit.scoring_seconds,
      fit_seconds, perplexity("before"));
  if (fit.held_out.contains("mixture")) {
    text += fmt::format("{:.3f} with the best fixed weights, ", perplexity("mixture"));
  }
  text += fmt::format("{:.3f} fitted\n", perplexity("after"));
  const std::vector<std::string> names = fit.names();
  for (size_t i = 0; i < names.size(); ++i) {
    text +=
        fmt::format("  {:<16} {:>10.3f} alone   weight {:.4f}\n", plain(names[i]),
                    std::exp(-fit.held_out["specialists"][names[i]].get<double>()), fit.weights[i]);
  }
  return text;
}

/// No file gets weights that are no numbers.
void require_finite(const vitrine::CombinerSpec& fitted, const std::string& path) {
  const auto is_finite = [](const auto& values) {
    return std::ranges::all_of(values, [](const auto value) { return std::isfinite(value); });
  };
  if (is_finite(fitted.weights) && is_finite(fitted.gate) && is_finite(fitted.bias)) return;
  throw vitrine::Error(vitrine::ErrorKind::kBadFile,
                       path +
                           ": the fit came to weights that are no numbers, and nothing was "
                           "written; expected specialists whose predictions and hidden states "
                           "are numbers");
}

int run_fit(const FitArguments& arguments) {
  Fit fit;
  fit.spec = load_federation_spec(arguments.federation);
  require_output_folder("--out", arguments.out);
  std::vector<NamedPath> inputs = member_paths(fit.spec);
  inputs.emplace_back("FEDERATION", arguments.federation);
  for (const std::string& text : arguments.texts) inputs.emplace_back("TEXT", text);
  refuse_same_file({"--out", arguments.out}, inputs);
  fit.spec.combiner.members.clear();  // fitted anew, for the members as they are
  fit.spec.check_members();
  const std::string kind = arguments.combiner.empty()
                               ? std::string(vitrine::combiner_kind_name(fit.spec.combiner.kind))
                               : arguments.combiner;
  fit.texts = read_texts(arguments.texts, fit.spec, arguments.window);
  if (kind == "product") {
    fit_on_rows(arguments, fit);
  } else {
    fit_on_shares(arguments, kind == "gate", fit);
  }
  require_finite(fit.fitted, arguments.federation);
  const double fit_seconds = fit.watch.seconds() - fit.scoring_seconds;
  const std::vector<std::string> members = vitrine::member_hashes(fit.spec);
  ordered_json manifest = manifest_of(arguments, fit, members);
  fit.spec.combiner = fit.fitted;
  if (kind == "gate") fit.spec.combiner.members = members;
  fit.spec.fit_json = manifest.dump();
  fit.spec.path = arguments.out;
  vitrine::write_file_atomically(arguments.out, fit.spec.to_json());
  if (arguments.json) {
    manifest["seconds"] = {{"scoring", fit.scoring_seconds}, {"fitting", fit_seconds}};
    write_json(manifest);
  } else {
    write_out(fit_text(fit, fit_seconds));
  }
  return 0;
}

}  // namespace

void add_federate_fit(CLI::App& federate, Command& command) {
  CLI::App* fit =
      federate.add_subcommand("fit", "Fits a combiner's weights to texts by maximum likelihood");
  const auto arguments = std::make_shared<FitArguments>();
  arguments->add_to(*fit);
  fit->add_option("-o,--out", arguments->out, "where the fitted federation file goes")
      ->required()
      ->check(not_empty());
  fit->add_option("--combiner", arguments->combiner,
                  "mixture, gate or product (default: what the file has)")
      ->check(CLI::IsMember({"mixture", "gate", "product"}));
  fit->add_option("--held-out", arguments->held_out, "part of the windows that is held out")
      ->check(CLI::Range(0.01, 0.5))
      ->capture_default_str();
  fit->add_option("--penalty", arguments->penalty, "of a gate's squared weights")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  fit->add_option("--memory", arguments->memory_mib,
                  "MiB for the rows that a product is fitted on: of longer texts, evenly spread "
                  "windows")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  fit->callback([arguments, &command] { command = [arguments] { return run_fit(*arguments); }; });
}

}  // namespace cli
