// SPDX-License-Identifier: Apache-2.0
// vitrine score: logits, log-probabilities and a greedy continuation of given ids.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "common.h"

namespace cli {

namespace {

constexpr int kRowsPerStep = 32;  // bounds the memory of the logits
constexpr int64_t kGreedyIds = 24;

struct ScoreArguments {
  std::string model, tokens, out;
  DeviceOptions device;
};

/// log p(token) under the softmax of `logits`, in double.
double log_softmax_at(std::span<const float> logits, int32_t token) {
  double largest = -INFINITY;
  for (float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<size_t>(token)]) - largest - std::log(sum);
}

void check_finite(std::span<const float> logits, int64_t position) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isfinite(logits[id])) continue;
    throw vitrine::Error(vitrine::ErrorKind::kInternal,
                         fmt::format("position {}: the logit of token {} is {}; expected finite "
                                     "numbers: the weights or the kernels are broken",
                                     position, id, logits[id]));
  }
}

int run_score(const ScoreArguments& arguments) {
  vitrine::EngineOptions options = arguments.device.engine_options();
  require_output_folder("--out", arguments.out);
  int64_t limit = 0;
  std::vector<int32_t> ids;
  {
    const vitrine::Checkpoint checkpoint = open_model(arguments.model);
    const vitrine::ModelConfig config = vitrine::parse_model_config(checkpoint);
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
  options.max_context = static_cast<int>(std::min(limit, count + kGreedyIds));
  options.max_step_tokens = kRowsPerStep;
  options.max_logit_rows = kRowsPerStep;
  options.audit_mode = vitrine::AuditMode::kNone;
  options.keep_logits = true;
  const auto engine = vitrine::Engine::load(arguments.model, options);

  std::vector<double> token_logprobs;
  std::vector<float> logits_last;
  std::vector<int32_t> greedy;
  const vitrine::SequenceId sequence = engine->create_sequence();
  for (int64_t first = 0; first < count; first += kRowsPerStep) {
    vitrine::StepInput input;
    input.sequence = sequence;
    input.tokens = std::span<const int32_t>(ids).subspan(
        static_cast<size_t>(first),
        static_cast<size_t>(std::min<int64_t>(kRowsPerStep, count - first)));
    input.rows = vitrine::StepInput::Rows::kAll;
    for (const vitrine::StepOutput& output : engine->step({&input, 1})) {
      check_finite(output.logits, output.position);
      const size_t next = static_cast<size_t>(output.position) + 1;
      if (next < ids.size()) {
        token_logprobs.push_back(log_softmax_at(output.logits, ids[next]));
      } else {
        logits_last.assign(output.logits.begin(), output.logits.end());
        greedy.push_back(output.token);
      }
    }
  }
  while (static_cast<int64_t>(greedy.size()) < num_greedy) {
    vitrine::StepInput input;
    input.sequence = sequence;
    const int32_t token = greedy.back();
    input.tokens = {&token, 1};
    greedy.push_back(engine->step({&input, 1}).front().token);
  }
  nlohmann::ordered_json json;
  json["logits_last"] = logits_last;
  json["token_logprobs"] = token_logprobs;
  json["greedy"] = greedy;
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
  arguments->device.add_to(*score);
  score->callback(
      [arguments, &command] { command = [arguments] { return run_score(*arguments); }; });
}

}  // namespace cli
