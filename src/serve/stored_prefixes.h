// SPDX-License-Identifier: Apache-2.0
// Brings prefixes from a store's files into the tree before a prompt begins, and from the tree into
// files.
#pragma once

#include <functional>
#include <memory>

#include "serve/job.h"
#include "serve/prefix_store.h"
#include "serve/prefix_tree.h"
#include "serve/record_tap.h"
#include "vitrine/engine.h"

namespace vitrine::serve {

/// It is the steps' thread's; what takes long is the store's own. Not thread-safe.
class StoredPrefixes {
 public:
  /// `evict` makes room in the engine's pool; false: nothing gives way. `audit`: who is told of
  /// records that a prefix brings along; null: nobody. All that is given must stay.
  StoredPrefixes(Engine& engine, PrefixTree& tree, const RecordTap& tap,
                 std::unique_ptr<PrefixStore> store, std::function<bool()> evict, AuditSink* audit);

  /// Returns whether a prompt had better wait, since a longer beginning of it than `has` tokens is
  /// being looked for or read. Nobody waits for that long.
  bool awaits(const PrefixKey& key, std::span<const int32_t> tokens, int64_t has, double waited);
  /// Returns whether somebody was told to wait since the last take_in().
  bool is_awaited() const { return is_awaited_; }
  /// Returns whether the store opens, reads or writes something.
  bool is_working() const { return !store_->is_idle(); }
  /// Puts what was read into the tree.
  void take_in(double now);
  /// Hands one prefix that was used again to the store, where it is free. For a moment when nobody
  /// steps; one that gives way to others in the meantime goes there, too.
  void store_one();
  /// Hands over all, those that were used most first, and waits until they are written.
  void store_all();
  void add_counts(ServerTelemetry& telemetry) const;
  std::vector<std::string> notes() const { return store_->notes(); }

 private:
  void store(const PrefixTree::Kept& kept);
  void try_to_store(const PrefixTree::Kept& kept);
  PrefixTree::Node* take_in(PrefixStore::Read& read, double now);
  PrefixId make_prefix(PrefixStore::Read& read, PrefixId parent);

  Engine& engine_;
  PrefixTree& tree_;
  const RecordTap& tap_;
  std::unique_ptr<PrefixStore> store_;
  std::function<bool()> evict_;
  AuditSink* audit_;
  bool is_awaited_ = false;
  uint64_t changes_seen_ = 0;  // of the tree, when nothing was left to store
  uint64_t num_read_ = 0, num_read_tokens_ = 0;
};

}  // namespace vitrine::serve
