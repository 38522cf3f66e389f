// SPDX-License-Identifier: Apache-2.0
// Gathers the tokens of each adapter that a batch uses.
#pragma once

#include <span>
#include <vector>

#include "engine/run/executor.h"

namespace vitrine::engine {

/// Gathered without allocating. All of it stands here, since a backend uses it that links nothing
/// of this room.
class AdapterGroups {
 public:
  void reserve(size_t adapters, size_t tokens) {
    adapters_ = adapters;
    groups_.reserve(adapters);
    rows_.reserve(tokens);
  }

  /// Valid until the next call.
  std::span<const ops::AdapterRows> gather(const StepBatch& batch) {
    groups_.clear();
    rows_.clear();
    for (size_t adapter = 0; adapter < adapters_; ++adapter) {
      const size_t first = rows_.size();
      for (size_t i = 0; i < batch.spans.size(); ++i) {
        if (batch.span_adapters[i] != static_cast<int32_t>(adapter)) continue;
        for (int32_t token = 0; token < batch.spans[i].num_tokens; ++token) {
          rows_.push_back(batch.spans[i].first_token + token);
        }
      }
      const size_t count = rows_.size() - first;
      if (count == 0) continue;
      groups_.push_back(
          {static_cast<int32_t>(adapter), rows_.data() + first, static_cast<int32_t>(count)});
    }
    return groups_;
  }

 private:
  std::vector<ops::AdapterRows> groups_;
  std::vector<int32_t> rows_;
  size_t adapters_ = 0;
};

}  // namespace vitrine::engine
