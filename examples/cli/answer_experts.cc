// SPDX-License-Identifier: Apache-2.0
#include "answer_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace cli {

namespace {

struct Use {
  int32_t expert = 0;
  int64_t tokens = 0;
  double weight = 0;  // summed: of each token's weights, which it is divided by
};

}  // namespace

std::string answer_experts(const std::vector<vitrine::TokenRecord>& records, size_t most) {
  int64_t tokens = 0;
  double logprob = 0, entropy = 0;
  std::map<int32_t, std::map<int32_t, Use>> layers;
  for (const vitrine::TokenRecord& record : records) {
    if (!record.has_prediction || !record.prediction.generated) continue;
    ++tokens;
    logprob += record.prediction.logprob;
    entropy += record.prediction.entropy;
    for (const vitrine::LayerRecord& layer : record.layers) {
      double sum = 0;  // not 1 where the router scales its weights, or leaves them as they are
      for (const vitrine::RouteRecord& route : layer.routes) sum += double{route.weight};
      for (const vitrine::RouteRecord& route : layer.routes) {
        Use& use = layers[layer.layer][route.expert];
        use.expert = route.expert;
        ++use.tokens;
        if (sum > 0) use.weight += double{route.weight} / sum;
      }
    }
  }
  if (tokens == 0) return "no record of an answer's tokens\n";
  const auto count = static_cast<double>(tokens);
  std::string text =
      fmt::format("{} tokens, mean log-probability {:.3f}, mean entropy {:.3f} nats\n", tokens,
                  logprob / count, entropy / count);
  if (layers.empty()) return text + "no experts: a dense model\n";
  text += "layer  expert  tokens   share  mean gate weight\n";
  for (const auto& [layer, experts] : layers) {
    std::vector<Use> uses;
    int64_t routes = 0;
    for (const auto& [expert, use] : experts) {
      uses.push_back(use);
      routes += use.tokens;
    }
    std::ranges::stable_sort(uses, [](const Use& a, const Use& b) { return a.tokens > b.tokens; });
    const auto percent = [routes](int64_t part) {
      return 100 * static_cast<double>(part) / static_cast<double>(routes);
    };
    int64_t shown = 0;
    for (size_t i = 0; i < std::min(most, uses.size()); ++i) {
      const Use& use = uses[i];
      shown += use.tokens;
      text += fmt::format("{:>5}  {:>6}  {:>6}  {:>5.1f}%  {:>16.3f}\n",
                          i == 0 ? std::to_string(layer) : "", use.expert, use.tokens,
                          percent(use.tokens), use.weight / static_cast<double>(use.tokens));
    }
    if (uses.size() > most) {
      text +=
          fmt::format("       {:>6}  {:>6}  {:>5.1f}%\n", fmt::format("+{}", uses.size() - most),
                      routes - shown, percent(routes - shown));
    }
  }
  return text;
}

}  // namespace cli
