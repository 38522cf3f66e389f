// SPDX-License-Identifier: Apache-2.0
#include "hidden_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common.h"

namespace cli {

std::vector<int> parse_hidden_layers(const std::string& text, int num_layers) {
  std::vector<int> layers;
  if (text == "all") {
    for (int layer = 0; layer <= num_layers; ++layer) layers.push_back(layer);
    return layers;
  }
  const std::vector<int64_t> numbers = parse_numbers(text, ',');
  if (numbers.empty() || std::ranges::max(numbers) > num_layers) {
    refuse(
        fmt::format("--hidden-states {}: expected layers from 0 to {} with commas, as 0,{}, or all",
                    text, num_layers, num_layers));
  }
  for (const int64_t layer : numbers) layers.push_back(static_cast<int>(layer));
  return layers;
}

std::function<bool(const vitrine::TokenRecord&)> parse_hidden_positions(const std::string& text) {
  if (text == "all") return {};
  if (text == "generated") {
    return [](const vitrine::TokenRecord& record) {
      return record.has_prediction && record.prediction.generated;
    };
  }
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find(',', first), text.size());
    const std::vector<int64_t> range = parse_numbers(text.substr(first, end - first), '-');
    if (range.size() != 2 || range[1] < range[0]) {
      refuse(
          fmt::format("--hidden-positions {}: expected all, generated, or FIRST-LAST with "
                      "commas, as 0-11,40-40",
                      text));
    }
    ranges.emplace_back(range[0], range[1]);
    first = end + 1;
  }
  return [ranges](const vitrine::TokenRecord& record) {
    return std::ranges::any_of(ranges, [&](const auto& range) {
      return record.position >= range.first && record.position <= range.second;
    });
  };
}

}  // namespace cli
