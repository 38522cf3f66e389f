// SPDX-License-Identifier: Apache-2.0
// guess_lines: what heads guess, for an oracle to compare. A line in is
//
//   {"kind": "eagle3", "heads": FOLDER, "model": FOLDER, "layers": [2, 3, 4], "guesses": 5,
//    "chunk": 3, "texts": [{"tokens": […], "features": FILE}, …]}
//
// Each text's features are float32 [length - 1, layers * hidden], ascending by layer, and are shown
// `chunk` rows at a time. With a "depth" a tree is asked for. A line out is [{"tokens": […],
// "parents": […], "logits": [[…], …]}, …], or {"error": …}.
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "draft_heads/head_kind.h"

namespace {

using Json = nlohmann::json;

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), floats.size() * sizeof(float), reinterpret_cast<char*>(floats.data()));
  return floats;
}

Json answer(const Json& request) {
  const std::vector<int> layers = request.value("layers", std::vector<int>());
  const auto drafter = vitrine::draft_heads::make_heads(
      request.at("kind").get<std::string>(), request.at("heads"), request.at("model"), layers);
  const auto guesses = request.at("guesses").get<size_t>();
  const auto chunk = request.at("chunk").get<size_t>();
  std::vector<vitrine::DraftProposal> proposals;
  const int32_t depth = request.value("depth", 0);
  std::vector<std::vector<int32_t>> tokens, parents;
  for (const Json& text : request.at("texts")) {
    const auto prompt = text.at("tokens").get<std::vector<int32_t>>();
    const auto length = static_cast<int64_t>(prompt.size());
    const vitrine::DraftTextId id = drafter->start({"", length, length + 8});
    drafter->commit(id, prompt);
    const std::vector<float> features = read_floats(text.at("features"));
    const size_t width = features.size() / (prompt.size() - 1);
    for (size_t row = 0; row + 1 < prompt.size(); row += chunk) {
      const size_t count = std::min(chunk, prompt.size() - 1 - row);
      drafter->observe(id, static_cast<int64_t>(row),
                       std::span(features).subspan(row * width, count * width));
    }
    proposals.push_back({id, {}, 0});
    tokens.emplace_back(guesses);
    parents.emplace_back(guesses);
  }
  for (size_t i = 0; i < proposals.size(); ++i) {
    proposals[i].tokens = tokens[i];
    if (depth == 0) continue;
    proposals[i].parents = parents[i];
    proposals[i].max_depth = depth;
  }
  std::vector<std::vector<std::vector<float>>> logits(proposals.size());
  drafter->on_logits = [&](vitrine::DraftTextId text, int32_t guess, std::span<const float> row) {
    const auto found = std::ranges::find(proposals, text, &vitrine::DraftProposal::text);
    auto& own = logits[static_cast<size_t>(found - proposals.begin())];
    own.resize(static_cast<size_t>(guess) + 1);
    own.back().assign(row.begin(), row.end());
  };
  drafter->propose(proposals);
  Json out = Json::array();
  for (size_t i = 0; i < proposals.size(); ++i) {
    tokens[i].resize(static_cast<size_t>(proposals[i].count));
    parents[i].resize(tokens[i].size());
    out.push_back({{"tokens", tokens[i]}, {"logits", logits[i]}});
    if (depth > 0) out.back()["parents"] = parents[i];
  }
  return out;
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
