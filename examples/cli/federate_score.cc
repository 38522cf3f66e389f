// SPDX-License-Identifier: Apache-2.0
// vitrine federate score: what a federation is worth on texts.
#include <fmt/format.h>

#include <cmath>

#include "audit_run.h"
#include "federate.h"

namespace cli {

namespace {

using nlohmann::ordered_json;

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
      fmt::format("{:<16}{:>8}{:>10.3f}", plain(text), score.tokens, score.perplexity(score.joint));
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

int run_federated_score(const TextArguments& arguments) {
  const vitrine::FederationSpec spec = load_federation_spec(arguments.federation);
  spec.check_members();
  const ScoredTexts texts = read_texts(arguments.texts, spec, arguments.window);
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
  for (const std::string& name : names) text += fmt::format("{:>12}", short_name(name, 11));
  for (const std::string& name : names) text += fmt::format("{:>12}", "~" + short_name(name, 10));
  text += "   (~: mean share)\n";
  for (size_t i = 0; i < scores.size(); ++i) text += out_of(scores[i], names, texts.names[i]);
  if (scores.size() > 1) text += out_of(all, names, "all");
  write_out(text);
  return 0;
}

}  // namespace

void add_federate_score(CLI::App& federate, Command& command) {
  CLI::App* score = federate.add_subcommand(
      "score", "Tells the perplexity of texts, together and of each specialist, and their shares");
  const auto arguments = std::make_shared<TextArguments>();
  arguments->add_to(*score);
  score->callback(
      [arguments, &command] { command = [arguments] { return run_federated_score(*arguments); }; });
}

}  // namespace cli
