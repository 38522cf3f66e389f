// SPDX-License-Identifier: Apache-2.0
// mtp_lines: what the MTP layers of a model compute and guess, for an oracle to compare. A line
// in is
//
//   {"model": PATH, "tokens": […], "cuts": [5, 9, …], "guesses": 4, "layer": 0}
//
// and a line out
//
//   {"guesses": [[…], …], "logits": [[…], …], "streams": [[…], …]}
//
// guesses behind the first `cut` tokens, for each cut in order; then of each pair of a token's
// state and the token behind it that layer's logits and what left it. Or {"error": …}.
#include <iostream>
#include <nlohmann/json.hpp>

#include "engine/engine_access.h"
#include "engine/run/loaded_model.h"
#include "vitrine/drafters.h"

namespace {

using Json = nlohmann::json;
using vitrine::StepInput;

std::vector<std::vector<float>> by_row(std::span<const float> rows, size_t count) {
  std::vector<std::vector<float>> all;
  const size_t width = rows.size() / count;
  for (size_t row = 0; row < count; ++row) {
    const auto one = rows.subspan(row * width, width);
    all.emplace_back(one.begin(), one.end());
  }
  return all;
}

Json answer(const Json& request) {
  const std::string path = request.at("model");
  const auto tokens = request.at("tokens").get<std::vector<int32_t>>();
  const std::span<const int32_t> all = tokens;
  const auto config = vitrine::read_model_facts(vitrine::Checkpoint::open(path));
  vitrine::EngineOptions options;
  options.threads = options.max_sequences = 2;
  options.max_step_tokens = options.max_logit_rows = static_cast<int>(tokens.size());
  options.keep_hidden_state = options.keep_logits = true;
  options.audit_mode = vitrine::AuditMode::kNone;
  vitrine::EngineOptions shown = options;
  shown.feature_layers = {static_cast<int>(config.num_layers)};
  const auto target = vitrine::Engine::load(path, shown);
  const auto sequence = target->create_sequence();
  const auto drafter = vitrine::make_mtp_drafter(path, target->options());
  const vitrine::DraftTextId text = drafter->start({});
  Json answer;
  answer["guesses"] = Json::array();
  size_t committed = 0, computed = 0;
  for (const size_t cut : request.at("cuts")) {
    drafter->commit(text, all.subspan(committed, cut - committed));
    StepInput input;
    input.sequence = sequence;
    input.tokens = all.subspan(computed, cut - 1 - computed);
    input.rows = StepInput::Rows::kNone;
    target->step({&input, 1});
    drafter->observe(text, static_cast<int64_t>(computed), target->features(sequence));
    committed = cut;
    computed = cut - 1;
    std::vector<int32_t> guesses(request.at("guesses").get<size_t>());
    vitrine::DraftProposal proposal{text, guesses};
    drafter->propose({&proposal, 1});
    guesses.resize(static_cast<size_t>(proposal.count));
    answer["guesses"].push_back(guesses);
  }

  const size_t pairs = tokens.size() - 1;
  StepInput input;
  input.sequence = target->create_sequence();
  input.tokens = all.first(pairs);
  input.rows = StepInput::Rows::kAll;
  std::vector<float> states;
  for (const vitrine::StepOutput& output : target->step({&input, 1})) {
    states.insert(states.end(), output.hidden_state.begin(), output.hidden_state.end());
  }
  vitrine::engine::LoadRequest load;
  load.draft_layer = request.value("layer", 0);
  const auto layer = vitrine::engine::EngineAccess::load(path, options, load);
  input.sequence = layer->create_sequence();
  input.tokens = all.last(pairs);
  answer["logits"] = Json::array();
  for (const vitrine::StepOutput& output : layer->step_layers({&input, 1}, {0, 1}, states)) {
    answer["logits"].push_back(std::vector<float>(output.scores.begin(), output.scores.end()));
  }
  answer["streams"] = by_row(layer->residual_rows(), pairs);
  return answer;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << answer(Json::parse(line)) << std::endl;
    } catch (const std::exception& error) {
      std::cout << Json{{"error", error.what()}} << std::endl;
    }
  }
  return 0;
}
