// SPDX-License-Identifier: Apache-2.0
// vitrine federate score: what a federation is worth on texts.
#include <fmt/format.h>

#include "audit_run.h"
#include "federate.h"

namespace cli {

namespace {

using nlohmann::ordered_json;

std::string out_of(const vitrine::TextScore& score, const std::vector<std::string>& names,
                   const std::string& text) {
  std::string line =
      fmt::format("{:<16}{:>8}{:>10.3f}", plain(text), score.num_tokens(), score.perplexity());
  for (size_t i = 0; i < names.size(); ++i) {
    line += fmt::format("{:>12.3f}", score.perplexity(i));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    line += fmt::format("{:>12.3f}", score.share(i));
  }
  return line + "\n";
}

ordered_json json_of(const vitrine::TextScore& score, const std::vector<std::string>& names) {
  ordered_json json = {{"tokens", score.num_tokens()},
                       {"perplexity", score.perplexity()},
                       {"log_likelihood", score.logprob()}};
  for (size_t i = 0; i < names.size(); ++i) {
    json["specialists"][names[i]] = {{"perplexity", score.perplexity(i)},
                                     {"share", score.share(i)}};
  }
  return json;
}

int run_federated_score(const TextArguments& arguments) {
  const vitrine::FederationSpec spec = load_federation_spec(arguments.federation);
  spec.check_members();
  const ScoredTexts texts = read_texts(arguments.texts, spec, arguments.window);
  const auto federation =
      vitrine::Federation::load(spec, text_options(arguments.device, arguments.window));
  catch_interrupts();
  std::vector<vitrine::TextScore> scores(texts.ids.size());
  vitrine::TextScore all;
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
