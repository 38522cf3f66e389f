// SPDX-License-Identifier: Apache-2.0
// Names whole blocks of ids, and tells a listener which of them prompts can begin with.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "vitrine/kv_events.h"

namespace vitrine::serve {

/// Gathers what happens to a model's blocks between two steps. Not thread-safe.
class BlockTeller {
 public:
  /// The owner of blocks: an adapter of the model's, and whom prefixes are shared with.
  struct Owner {
    int adapter = -1;
    const std::string& tenant;
  };

  /// `listener` must stay. `adapters`: what requests call the model's.
  BlockTeller(KvBlockListener& listener, std::string model, int64_t block_size,
              std::vector<std::string> adapters);

  /// How many whole blocks so many ids have.
  int64_t blocks_of(int64_t ids) const { return ids / block_size_; }
  /// Takes the blocks of `ids` from number `first` on as stored behind the one of name `parent` (0:
  /// there is none), and returns their names: none where there is no memory, which is made good
  /// with all that was lost.
  std::vector<uint64_t> store(const Owner& owner, std::span<const int32_t> ids, int64_t first,
                              uint64_t parent);
  void remove(std::span<const uint64_t> names);
  /// None is left.
  void clear();
  /// Hands over what has happened. `store_all` is called where earlier events were lost: it stores
  /// all blocks that there are. `now`: seconds of a clock that never goes back.
  void tell(double now, const std::function<void()>& store_all);

 private:
  uint64_t root_of(const Owner& owner) const;

  KvBlockListener& listener_;
  const std::string model_;
  const int64_t block_size_;
  const std::vector<std::string> adapters_;
  std::vector<KvBlockEvent> events_;
  bool has_lost_ = false;
  double next_try_ = 0;  // while something is lost
};

}  // namespace vitrine::serve
