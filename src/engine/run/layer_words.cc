// SPDX-License-Identifier: Apache-2.0
#include "engine/run/layer_words.h"

#include <cstring>

namespace vitrine::engine {

LayerWords::LayerWords(const ops::Graph& graph, const AuditLayout& layout, LayerRange layers)
    : token_bytes_(static_cast<size_t>(layout.token_words) * sizeof(int32_t)) {
  const std::vector<size_t> begins = ops::layer_begins(graph);
  const size_t end = begins[static_cast<size_t>(layers.end)];
  for (size_t node = begins[static_cast<size_t>(layers.first)]; node < end; ++node) {
    const auto words = graph.nodes[node].parameters->recorded(layout, graph.nodes[node]);
    words_.insert(words_.end(), words.begin(), words.end());
  }
}

void LayerWords::copy(const std::byte* from, std::byte* to, size_t tokens) const {
  for (size_t token = 0; token < tokens; ++token, from += token_bytes_, to += token_bytes_) {
    for (const ops::RecordedWords& words : words_) {
      const size_t first = static_cast<size_t>(words.first) * sizeof(int32_t);
      std::memcpy(to + first, from + first, static_cast<size_t>(words.count) * sizeof(int32_t));
    }
  }
}

}  // namespace vitrine::engine
