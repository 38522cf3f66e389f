// SPDX-License-Identifier: Apache-2.0
// The words of a token's record that some of the layers write.
#pragma once

#include <cstddef>
#include <vector>

#include "ops/graph.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

class LayerWords {
 public:
  /// Names no words.
  LayerWords() = default;
  LayerWords(const ops::Graph& graph, const AuditLayout& layout, LayerRange layers);
  /// Copies them between records of so many tokens.
  void copy(const std::byte* from, std::byte* to, size_t tokens) const;

 private:
  std::vector<ops::RecordedWords> words_;
  size_t token_bytes_ = 0;
};

}  // namespace vitrine::engine
