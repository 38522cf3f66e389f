// SPDX-License-Identifier: Apache-2.0
// A radix tree over the beginnings whose keys and values an engine keeps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "serve/block_teller.h"
#include "serve/job.h"
#include "vitrine/step.h"

namespace vitrine::serve {

/// What prefixes are kept apart by.
struct PrefixKey {
  int adapter = -1;    ///< which their keys and values were made with
  std::string tenant;  ///< whose they are; empty where tenants share
  bool operator<(const PrefixKey& other) const {
    return std::tie(adapter, tenant) < std::tie(other.adapter, other.tenant);
  }
};

/// Nodes end where a prefix of the engine ends or where texts part; an edge has the tokens from its
/// parent on. What is evicted is decided here alone, by Greedy-Dual-Size-Frequency (Cherkasova,
/// HPL-98-69): a leaf's rank is the tree's age when it was last used plus, times its uses, the
/// tokens that it saves over those that its blocks could hold. So leaves go before parents, partly
/// filled blocks before full ones, and what was used often stays longer than what was used once.
/// Not thread-safe.
class PrefixTree {
 public:
  struct Node;

  /// `stepper` keeps the prefixes. `block_size`: positions of its blocks.
  PrefixTree(Stepper& stepper, int64_t block_size);
  /// Releases all prefixes.
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// Where tokens were found.
  struct Match {
    PrefixId prefix = 0;   ///< that begins with them; 0: nothing was found
    int64_t length = 0;    ///< of the tokens, that can be gone on from at once
    Node* node = nullptr;  ///< that holds the prefix
  };
  /// Finds the longest beginning of the tokens that can be gone on from. Changes nothing.
  Match find(const PrefixKey& key, std::span<const int32_t> tokens) const;

  /// Finds the prefix that has most of the tokens, whether it can be gone on from there or not.
  Match covering(const PrefixKey& key, std::span<const int32_t> tokens) const;

  /// A prefix that is kept.
  struct Kept {
    const PrefixKey* key = nullptr;
    std::span<const int32_t> tokens;  ///< from the root on; valid while it is visited
    PrefixId prefix = 0;
    Node* node = nullptr;
    int64_t uses = 0;
    bool is_stored = false;  ///< mark_stored() was told of it
  };
  /// Shows all prefixes, those above others first.
  void visit(const std::function<void(const Kept&)>& show) const;
  static void mark_stored(Node* node);
  /// Has `show` called with each prefix that gives way to others, while it is still there.
  void show_evicted(std::function<void(const Kept&)> show) { show_evicted_ = std::move(show); }
  /// Has `teller`, which must stay, told of whole blocks from now on. The tree is empty still.
  void tell_blocks(BlockTeller& teller) { teller_ = &teller; }
  /// Tells it of all blocks that there are, as if they came just now.
  void store_blocks();
  /// Counts insertions and uses.
  uint64_t num_changes() const { return num_changes_; }

  /// Says where tokens part from a kept text and go on alike behind.
  PrefixBreak find_break(const PrefixKey& key, std::span<const int32_t> tokens) const;

  /// Keeps the first `length` tokens of a sequence, which are all computed. `words`: [tokens,
  /// token_words] what the recorder said of the sequence's beginning, or nothing. Returns the node,
  /// which is held (drop() it); null where `length` is 0.
  Node* insert(const PrefixKey& key, SequenceId sequence, int64_t length, double now,
               std::span<const int32_t> words = {});
  /// Takes a prefix over, as insert() makes one of a sequence, or releases it where the tree has
  /// it. Where it throws, the prefix is the caller's still.
  Node* adopt(const PrefixKey& key, PrefixId prefix, double now, std::span<const int32_t> words);
  /// Says how many words there are of a token, once that is known.
  void set_token_words(int64_t count) { token_words_ = count; }
  /// Returns [length, token_words] what the recorder said of a match's tokens; empty where it was
  /// not kept of all of them.
  std::vector<int32_t> words(const Match& match) const;
  /// Bytes of all that the recorder said.
  uint64_t word_bytes() const { return num_words_ * sizeof(int32_t); }
  /// Somebody goes on from a node: it counts as used, and stays until drop().
  void use(Node* node, double now);
  /// Holds a node without using it.
  static void hold(Node* node);
  /// Ends a use or a hold. Null is let pass.
  static void drop(Node* node);

  /// What gave way.
  struct Evicted {
    int64_t tokens = 0;  ///< of the leaf alone; 0: nothing could
    double age = 0;      ///< seconds since it was last used
  };
  /// Releases the leaf that is missed least, of those that nobody holds.
  Evicted evict(double now);
  /// Releases all that nobody holds.
  void clear();

  /// Returns about how many blocks evict() can free, one after another.
  int64_t num_evictable_blocks() const;
  int64_t num_prefixes() const { return num_prefixes_; }  ///< that are kept

 private:
  struct Place;
  Place descend(const PrefixKey& key, std::span<const int32_t> tokens) const;
  Node* insert(const PrefixKey& key, std::span<const int32_t> tokens, double now,
               std::span<const int32_t> words, const std::function<PrefixId()>& make);
  Node* split(Node* node, int64_t at);
  void keep(Node* node, PrefixId prefix);
  void remove(Node* leaf);
  Node* least_leaf() const;
  /// Returns the blocks that an edge's tokens stand in.
  int64_t edge_blocks(const Node& node) const;
  void rank(Node* node) const;
  static void visit(const PrefixKey& key, Node& node, std::vector<int32_t>& tokens,
                    const std::function<void(const Kept&)>& show);
  static void collect(const Node& node, std::vector<Node*>& leaves);
  void store_blocks(const PrefixKey& key, Node& node, std::span<const int32_t> tokens);
  int64_t evictable_blocks(const Node& node, bool& is_held) const;
  static void release_all(Stepper& stepper, Node& node);

  Stepper& stepper_;
  int64_t block_size_;
  bool has_states_;
  double age_ = 0;  // of Greedy-Dual: the rank of what was evicted last
  int64_t num_prefixes_ = 0;
  int64_t token_words_ = 0;
  uint64_t num_changes_ = 0;
  std::function<void(const Kept&)> show_evicted_;
  BlockTeller* teller_ = nullptr;  // null: nobody is told of blocks
  uint64_t num_words_ = 0;         // that nodes hold
  std::map<PrefixKey, std::unique_ptr<Node>> roots_;
};

}  // namespace vitrine::serve
