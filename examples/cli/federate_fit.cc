// vitrine federate fit and score: weights by maximum likelihood, and what a federation is worth.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "federate.h"

namespace cli {

namespace {

using nlohmann::ordered_json;
using Kind = vitrine::CombinerSpec::Kind;

struct FitArguments {
  std::string federation, out, combiner;
  std::vector<std::string> texts;
  int window = 256;
  double held_out = 0.1, penalty = 1e-3;
  bool json = false;
  DeviceOptions device;
};

/// Sums over tokens that end as means.
struct Score {
  size_t tokens = 0;
  double joint = 0;
  std::vector<double> specialists, shares;

  void add(const ScoredToken& token) {
    specialists.resize(token.shares.size());
    shares.resize(token.shares.size());
    ++tokens;
    joint += double{token.output->logits[static_cast<size_t>(token.token)]};
    for (size_t i = 0; i < token.shares.size(); ++i) {
      specialists[i] += token.shares[i].logprob;
      shares[i] += token.shares[i].share;
    }
  }
  double mean(double sum) const { return sum / static_cast<double>(tokens); }
  double perplexity(double sum) const { return std::exp(-mean(sum)); }
};

std::string out_of(const Score& score, const std::vector<std::string>& names,
                   const std::string& text) {
  std::string line =
      fmt::format("{:<16}{:>8}{:>10.3f}", text, score.tokens, score.perplexity(score.joint));
  for (size_t i = 0; i < names.size(); ++i) {
    line += fmt::format("{:>12.3f}", score.perplexity(score.specialists[i]));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    line += fmt::format("{:>12.3f}", score.mean(score.shares[i]));
  }
  return line + "\n";
}

ordered_json json_of(const Score& score, const std::vector<std::string>& names) {
  ordered_json json = {{"tokens", score.tokens},
                       {"perplexity", score.perplexity(score.joint)},
                       {"log_likelihood", score.mean(score.joint)}};
  for (size_t i = 0; i < names.size(); ++i) {
    json["specialists"][names[i]] = {{"perplexity", score.perplexity(score.specialists[i])},
                                     {"share", score.mean(score.shares[i])}};
  }
  return json;
}

std::vector<std::string> names_of(const vitrine::FederationSpec& spec) {
  std::vector<std::string> names;
  for (const vitrine::SpecialistSpec& specialist : spec.specialists) {
    names.push_back(specialist.name);
  }
  return names;
}

int run_score(const FitArguments& arguments) {
  const vitrine::FederationSpec spec = vitrine::FederationSpec::load(arguments.federation);
  spec.check_members();
  const ScoredTexts texts = read_texts(arguments.texts, spec);
  const auto federation =
      vitrine::Federation::load(spec, scoring_options(arguments.device, arguments.window));
  catch_interrupts();
  std::vector<Score> scores(texts.ids.size());
  Score all;
  score_texts(*federation, texts, arguments.window, [&](const ScoredToken& token) {
    scores[token.text].add(token);
    all.add(token);
  });
  const std::vector<std::string> names = names_of(spec);
  if (arguments.json) {
    ordered_json json = {{"federation", spec.path}, {"window", arguments.window}};
    for (size_t i = 0; i < scores.size(); ++i) {
      json["texts"][texts.names[i]] = json_of(scores[i], names);
    }
    json["all"] = json_of(all, names);
    write_json(json);
    return 0;
  }
  std::string text = fmt::format("{:<16}{:>8}{:>10}", "perplexity", "tokens", "together");
  for (const std::string& name : names) text += fmt::format("{:>12}", name.substr(0, 11));
  for (const std::string& name : names) text += fmt::format("{:>12}", "~" + name.substr(0, 10));
  text += "   (~: mean share)\n";
  for (size_t i = 0; i < scores.size(); ++i) text += out_of(scores[i], names, texts.names[i]);
  if (scores.size() > 1) text += out_of(all, names, "all");
  write_out(text);
  return 0;
}

void add_to(vitrine::FitData& data, const ScoredToken& token, size_t specialists) {
  data.num_specialists = specialists;
  for (const vitrine::SpecialistShare& share : token.shares) {
    data.logprobs.push_back(static_cast<float>(share.logprob));
  }
  const std::span<const float> state = token.output->hidden_state;
  data.hidden_size = static_cast<int64_t>(state.size());
  data.hidden_states.insert(data.hidden_states.end(), state.begin(), state.end());
}

/// What there was before: the file's weights, or the same for all where it has a gate or a product.
vitrine::CombinerSpec uniform(size_t count) {
  vitrine::CombinerSpec spec;
  spec.weights.assign(count, 1.0 / static_cast<double>(count));
  return spec;
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

int run_fit(const FitArguments& arguments) {
  const auto started = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  vitrine::FederationSpec spec = vitrine::FederationSpec::load(arguments.federation);
  require_output_folder("--out", arguments.out);
  spec.combiner.members.clear();  // fitted anew, for the members as they are
  spec.check_members();
  if (arguments.combiner.empty() && spec.combiner.kind == Kind::kProduct) {
    refuse(
        fmt::format("{}: the weights of a product are not fitted; expected --combiner mixture or "
                    "gate, or weights of your own",
                    arguments.federation));
  }
  const bool wants_gate =
      arguments.combiner.empty() ? spec.combiner.kind == Kind::kGate : arguments.combiner == "gate";
  const size_t count = spec.specialists.size();
  const vitrine::CombinerSpec before =
      spec.combiner.kind == Kind::kMixture ? spec.combiner : uniform(count);
  const ScoredTexts texts = read_texts(arguments.texts, spec);
  spec.combiner = before;
  if (wants_gate) {
    const auto config = vitrine::parse_model_config(open_model(spec.specialists[0].model));
    spec.combiner = gate_from(before, config.hidden_size);
  }
  vitrine::FitData train, held_out;
  {
    const auto federation =
        vitrine::Federation::load(spec, scoring_options(arguments.device, arguments.window));
    catch_interrupts();
    // Windows are dealt out evenly: one in so many is held out.
    const auto every = static_cast<size_t>(std::lround(1 / arguments.held_out));
    score_texts(*federation, texts, arguments.window, [&](const ScoredToken& token) {
      add_to(token.window % every == every / 2 ? held_out : train, token, count);
    });
  }
  if (held_out.num_tokens() == 0 || train.num_tokens() == 0) {
    refuse(
        fmt::format("the texts have {} tokens in windows of {}, too few to hold some out; "
                    "expected more text or a smaller --window",
                    texts.num_tokens(), arguments.window));
  }
  const double scoring_seconds = seconds();
  const vitrine::CombinerSpec mixture = vitrine::fit_mixture(train);
  const vitrine::CombinerSpec fitted =
      wants_gate
          ? vitrine::fit_gate(train, gate_from(mixture, train.hidden_size), arguments.penalty)
          : mixture;
  const double fit_seconds = seconds() - scoring_seconds;
  const std::vector<std::string> names = names_of(spec);
  ordered_json fit;
  fit["build"] = vitrine::engine_build();
  fit["window"] = arguments.window;
  if (wants_gate) fit["penalty"] = arguments.penalty;
  for (size_t i = 0; i < texts.names.size(); ++i) {
    fit["data"].push_back(
        {{"file", texts.names[i]}, {"sha256", texts.hashes[i]}, {"tokens", texts.ids[i].size()}});
  }
  const std::vector<std::string> members = vitrine::member_hashes(spec);
  for (size_t i = 0; i < count; ++i) fit["members"][names[i]] = members[i];
  fit["log_likelihood"] = {{"train", likelihoods(before, mixture, fitted, train, names)},
                           {"held_out", likelihoods(before, mixture, fitted, held_out, names)}};
  spec.combiner = fitted;
  if (wants_gate) spec.combiner.members = members;
  spec.fit_json = fit.dump();
  spec.path = arguments.out;
  vitrine::write_file_atomically(arguments.out, spec.to_json());
  if (arguments.json) {
    fit["seconds"] = {{"scoring", scoring_seconds}, {"fitting", fit_seconds}};
    write_json(fit);
    return 0;
  }
  const ordered_json& held = fit["log_likelihood"]["held_out"];
  const auto perplexity = [](const ordered_json& value) { return std::exp(-value.get<double>()); };
  std::string text = fmt::format(
      "{} tokens fitted on, {} held out; scored in {:.1f} s, fitted in {:.1f} s\n"
      "perplexity of what was held out: {:.3f} before, {:.3f} with the best fixed weights, {:.3f} "
      "fitted\n",
      train.num_tokens(), held_out.num_tokens(), scoring_seconds, fit_seconds,
      perplexity(held["before"]), perplexity(held["mixture"]), perplexity(held["after"]));
  for (size_t i = 0; i < count; ++i) {
    text += fmt::format("  {:<16} {:>10.3f} alone   weight {:.4f}\n", names[i],
                        perplexity(held["specialists"][names[i]]), mixture.weights[i]);
  }
  write_out(text);
  return 0;
}

std::shared_ptr<FitArguments> add_arguments(CLI::App* command) {
  auto arguments = std::make_shared<FitArguments>();
  command->add_option("FEDERATION", arguments->federation, "the federation file")->required();
  command->add_option("TEXT", arguments->texts, "UTF-8 files")->required();
  command
      ->add_option("--window", arguments->window,
                   "tokens that are read in one go; each window begins anew")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "one JSON object instead of text");
  arguments->device.add_to(*command);
  return arguments;
}

}  // namespace

void add_federate_fit(CLI::App& federate, Command& command) {
  federate.require_subcommand(0, 1);
  CLI::App* fit =
      federate.add_subcommand("fit", "Fits a combiner's weights to texts by maximum likelihood");
  const auto arguments = add_arguments(fit);
  fit->add_option("-o,--out", arguments->out, "where the fitted federation file goes")
      ->required()
      ->check(not_empty());
  fit->add_option("--combiner", arguments->combiner, "mixture or gate (default: what the file has)")
      ->check(CLI::IsMember({"mixture", "gate"}));
  fit->add_option("--held-out", arguments->held_out, "part of the windows that is held out")
      ->check(CLI::Range(0.01, 0.5))
      ->capture_default_str();
  fit->add_option("--penalty", arguments->penalty, "of a gate's squared weights")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  fit->callback([arguments, &command] { command = [arguments] { return run_fit(*arguments); }; });

  CLI::App* score = federate.add_subcommand(
      "score", "Tells the perplexity of texts, together and of each specialist, and their shares");
  const auto scored = add_arguments(score);
  score->callback([scored, &command] { command = [scored] { return run_score(*scored); }; });
}

}  // namespace cli
