// SPDX-License-Identifier: Apache-2.0
// vitrine score: logits, log-probabilities and a greedy continuation of given ids.
#include <fmt/format.h>

#include <algorithm>

#include "common.h"
#include "lora_options.h"
#include "vitrine/quality.h"

namespace cli {

namespace {

constexpr int64_t kGreedyIds = 24;

struct ScoreArguments {
  std::string model, tokens, out;
  DeviceOptions device;
};

int run_score(const ScoreArguments& arguments) {
  const vitrine::EngineOptions options = arguments.device.engine_options();
  require_output_folder("--out", arguments.out);
  int64_t limit = 0;
  std::vector<int32_t> ids;
  {
    const vitrine::Checkpoint checkpoint = open_model(arguments.model);
    const vitrine::ModelFacts config = vitrine::read_model_facts(checkpoint);
    limit = config.max_position_embeddings;
    ids = read_ids(arguments.tokens, config.vocab_size);
  }
  const int64_t count = static_cast<int64_t>(ids.size());
  if (ids.empty()) refuse(arguments.tokens + ": no ids; expected at least one");
  if (count > limit) {
    refuse(
        fmt::format("{}: {} ids, and the context of {} holds {} (config, "
                    "max_position_embeddings); expected fewer",
                    arguments.tokens, count, arguments.model, limit));
  }
  // The last greedy id is not fed, so it needs no position.
  const int64_t num_greedy = std::min(kGreedyIds, limit - count + 1);
  const auto engine = vitrine::Engine::load(
      arguments.model, vitrine::scoring_options(std::min(limit, count + kGreedyIds), options));
  const vitrine::TokenScores scores =
      vitrine::score_tokens(*engine, ids, {.greedy = static_cast<int>(num_greedy)});
  nlohmann::ordered_json json;
  json["logits_last"] = scores.last_logits;
  json["token_logprobs"] = scores.logprobs;
  json["greedy"] = scores.greedy;
  vitrine::write_file_atomically(arguments.out, json.dump() + "\n");
  if (num_greedy < kGreedyIds) {
    write_note(
        fmt::format("{}: the context of {} has room for {} greedy ids after {} given; "
                    "{} are left out",
                    arguments.out, limit, num_greedy, count, kGreedyIds - num_greedy));
  }
  return 0;
}

}  // namespace

void add_score(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<ScoreArguments>();
  CLI::App* score = app.add_subcommand("score", "Scores given ids and continues them greedily");
  add_model(*score, arguments->model);
  score->add_option("--tokens", arguments->tokens, "file with a JSON array of ids")->required();
  score
      ->add_option("--out", arguments->out,
                   "JSON file for logits_last, token_logprobs and greedy (24 ids)")
      ->check(not_empty())
      ->required();
  add_lora(*score, arguments->device.lora);
  arguments->device.add_to(*score);
  score->callback(
      [arguments, &command] { command = [arguments] { return run_score(*arguments); }; });
}

}  // namespace cli
