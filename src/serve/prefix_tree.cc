// SPDX-License-Identifier: Apache-2.0
#include "serve/prefix_tree.h"

#include <algorithm>
#include <utility>

namespace vitrine::serve {

struct PrefixTree::Node {
  Node* parent = nullptr;
  std::vector<int32_t> edge;                          // tokens from the parent's end to this one's
  int64_t end = 0;                                    // tokens from the root
  std::map<int32_t, std::unique_ptr<Node>> children;  // by their first token
  PrefixId prefix = 0;                                // of `end` tokens; 0 for the root alone
  std::vector<int32_t> words;                         // [edge, token_words] of its edge, or empty
  std::vector<uint64_t> blocks;  // names of whole blocks that end within its edge, where told of
  int32_t holders = 0;
  int64_t uses = 0;
  double last_use = 0;
  double rank = 0;
  bool is_stored = false;

  bool is_free_leaf() const { return parent != nullptr && children.empty() && holders == 0; }
};

/// Where tokens lead: a node, and how many tokens are known, which may end within its edge.
struct PrefixTree::Place {
  Node* node = nullptr;
  int64_t known = 0;
};

PrefixTree::PrefixTree(Stepper& stepper, int64_t block_size)
    : stepper_(stepper), block_size_(block_size), has_states_(stepper.traits().keeps_states) {}

PrefixTree::~PrefixTree() {
  for (auto& [key, root] : roots_) release_all(stepper_, *root);
}

void PrefixTree::release_all(Stepper& stepper, Node& node) {
  for (auto& [token, child] : node.children) release_all(stepper, *child);
  if (node.prefix != 0) stepper.release_prefix(node.prefix);
}

PrefixTree::Place PrefixTree::descend(const PrefixKey& key, std::span<const int32_t> tokens) const {
  const auto root = roots_.find(key);
  if (root == roots_.end()) return {};
  Place place{root->second.get(), 0};
  while (place.known < std::ssize(tokens)) {
    const auto rest = tokens.subspan(static_cast<size_t>(place.known));
    const auto child = place.node->children.find(rest.front());
    if (child == place.node->children.end()) break;
    place.node = child->second.get();
    const std::vector<int32_t>& edge = place.node->edge;
    const auto parted = std::ranges::mismatch(edge, rest);
    place.known += parted.in1 - edge.begin();
    if (parted.in1 != edge.end()) break;
  }
  return place;
}

PrefixTree::Match PrefixTree::find(const PrefixKey& key, std::span<const int32_t> tokens) const {
  const Place place = descend(key, tokens);
  Match best;
  if (place.node == nullptr || place.known == 0) return best;
  // The node itself reaches as far as the tokens do, or further; those above it are shorter, but
  // may have a state where it has none.
  for (Node* node = place.node; node->parent != nullptr; node = node->parent) {
    const int64_t length = std::min(node->end, place.known);
    if (length <= best.length) break;
    const int64_t resumed = stepper_.resumed_length(node->prefix, length);
    if (resumed > best.length) best = {node->prefix, resumed, node};
  }
  // Where the text goes on, a longer one may have kept a state or a window between.
  for (const auto& [token, child] : place.node->children) {
    if (best.length >= place.known) break;
    const int64_t resumed = stepper_.resumed_length(child->prefix, place.known);
    if (resumed > best.length) best = {child->prefix, resumed, child.get()};
  }
  return best;
}

PrefixTree::Match PrefixTree::covering(const PrefixKey& key,
                                       std::span<const int32_t> tokens) const {
  const Place place = descend(key, tokens);
  if (place.node == nullptr || place.known == 0) return {};
  return {place.node->prefix, place.known, place.node};
}

void PrefixTree::visit(const PrefixKey& key, Node& node, std::vector<int32_t>& tokens,
                       const std::function<void(const Kept&)>& show) {
  tokens.insert(tokens.end(), node.edge.begin(), node.edge.end());
  if (node.prefix != 0) {
    show({&key, tokens, node.prefix, &node, node.uses, node.is_stored});
  }
  for (const auto& [token, child] : node.children) visit(key, *child, tokens, show);
  tokens.resize(tokens.size() - node.edge.size());
}

void PrefixTree::visit(const std::function<void(const Kept&)>& show) const {
  std::vector<int32_t> tokens;
  for (const auto& [key, root] : roots_) visit(key, *root, tokens, show);
}

void PrefixTree::mark_stored(Node* node) { node->is_stored = true; }

PrefixBreak PrefixTree::find_break(const PrefixKey& key, std::span<const int32_t> tokens) const {
  constexpr size_t kLookAhead = 1024, kWindow = 16, kMostChanged = 96;
  const Place place = descend(key, tokens);
  if (place.node == nullptr || place.known == std::ssize(tokens)) return {};
  // What the tree has behind the place, along the child that was used most.
  std::vector<int32_t> kept;
  const Node* node = place.node;
  const auto within = std::ssize(node->edge) - (node->end - place.known);
  if (node->parent != nullptr) kept.assign(node->edge.begin() + within, node->edge.end());
  while (kept.size() < kLookAhead && !node->children.empty()) {
    node = std::ranges::max_element(node->children, {}, [](const auto& child) {
             return child.second->uses;
           })->second.get();
    kept.insert(kept.end(), node->edge.begin(), node->edge.end());
  }
  const auto own = tokens.subspan(static_cast<size_t>(place.known));
  const auto alike = [&](size_t in_kept, size_t in_own) {
    const auto parted =
        std::ranges::mismatch(std::span(kept).subspan(in_kept), own.subspan(in_own));
    return static_cast<size_t>(parted.in2 - (own.begin() + static_cast<std::ptrdiff_t>(in_own)));
  };
  // The least change first.
  for (size_t changed = 1; changed <= 2 * kMostChanged; ++changed) {
    for (size_t in_own = 0; in_own <= std::min(changed, kMostChanged); ++in_own) {
      const size_t in_kept = changed - in_own;
      if (in_kept > kMostChanged || in_kept + kWindow > kept.size() ||
          in_own + kWindow > own.size()) {
        continue;
      }
      const size_t lost = alike(in_kept, in_own);
      if (lost < kWindow) continue;
      kept.resize(in_kept);
      return {place.known, std::move(kept), static_cast<int64_t>(in_own),
              static_cast<int64_t>(lost)};
    }
  }
  return {};
}

int64_t PrefixTree::edge_blocks(const Node& node) const {
  const int64_t first = (node.end - std::ssize(node.edge)) / block_size_;
  return (node.end + block_size_ - 1) / block_size_ - first;
}

void PrefixTree::rank(Node* node) const {
  const auto tokens = static_cast<double>(std::ssize(node->edge));
  node->rank = age_ + static_cast<double>(node->uses + 1) * tokens /
                          static_cast<double>(edge_blocks(*node) * block_size_);
}

void PrefixTree::keep(Node* node, PrefixId prefix) {
  if (node->prefix != 0) stepper_.release_prefix(node->prefix);
  num_prefixes_ += node->prefix == 0 ? 1 : 0;
  node->prefix = prefix;
  node->is_stored = false;
}

// A node that ends at `at` comes between this one and its parent.
PrefixTree::Node* PrefixTree::split(Node* node, int64_t at) {
  // A prefix of its own, so that it stays when those behind it go.
  const SequenceId sequence = stepper_.attach(node->prefix, at);
  PrefixId prefix = 0;
  try {
    prefix = stepper_.retain(sequence, at);
  } catch (...) {
    stepper_.release(sequence);
    throw;
  }
  stepper_.release(sequence);
  auto upper = std::make_unique<Node>();
  Node* const made = upper.get();
  const auto cut = std::ssize(node->edge) - (node->end - at);
  upper->parent = node->parent;
  upper->edge.assign(node->edge.begin(), node->edge.begin() + cut);
  upper->end = at;
  upper->uses = node->uses;
  upper->last_use = node->last_use;
  std::unique_ptr<Node>& slot = node->parent->children.at(node->edge.front());
  std::unique_ptr<Node> lower = std::exchange(slot, std::move(upper));
  if (!lower->words.empty()) {
    const auto words = lower->words.begin() + cut * token_words_;
    made->words.assign(lower->words.begin(), words);
    lower->words.erase(lower->words.begin(), words);
  }
  if (!lower->blocks.empty()) {
    const auto blocks =
        lower->blocks.begin() + (teller_->blocks_of(at) - teller_->blocks_of(made->parent->end));
    made->blocks.assign(lower->blocks.begin(), blocks);
    lower->blocks.erase(lower->blocks.begin(), blocks);
  }
  lower->edge.erase(lower->edge.begin(), lower->edge.begin() + cut);
  lower->parent = made;
  made->children.emplace(lower->edge.front(), std::move(lower));
  keep(made, prefix);
  rank(made);
  return made;
}

std::vector<int32_t> PrefixTree::words(const Match& match) const {
  std::vector<const Node*> path;
  for (const Node* node = match.node; node->parent != nullptr; node = node->parent) {
    path.push_back(node);
  }
  std::vector<int32_t> all;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    if ((*node)->words.empty()) return {};
    all.insert(all.end(), (*node)->words.begin(), (*node)->words.end());
  }
  all.resize(static_cast<size_t>(match.length * token_words_));  // the last edge may reach further
  return all;
}

PrefixTree::Node* PrefixTree::insert(const PrefixKey& key, SequenceId sequence, int64_t length,
                                     double now, std::span<const int32_t> words) {
  if (length <= 0) return nullptr;
  const auto tokens = stepper_.tokens(sequence).first(static_cast<size_t>(length));
  return insert(key, tokens, now, words, [&] { return stepper_.retain(sequence, length); });
}

PrefixTree::Node* PrefixTree::adopt(const PrefixKey& key, PrefixId prefix, double now,
                                    std::span<const int32_t> words) {
  bool is_taken = false;
  const std::span<const int32_t> tokens = stepper_.prefix(prefix).tokens;
  Node* const node = insert(key, tokens, now, words, [&] {
    is_taken = true;
    return prefix;
  });
  if (!is_taken) stepper_.release_prefix(prefix);
  return node;
}

PrefixTree::Node* PrefixTree::insert(const PrefixKey& key, std::span<const int32_t> tokens,
                                     double now, std::span<const int32_t> words,
                                     const std::function<PrefixId()>& make) {
  const int64_t length = std::ssize(tokens);
  std::unique_ptr<Node>& root = roots_[key];
  if (root == nullptr) root = std::make_unique<Node>();
  const Place place = descend(key, tokens);
  Node* node = place.node;
  if (place.known < node->end) node = split(node, place.known);
  if (node->end < length) {
    auto leaf = std::make_unique<Node>();
    leaf->parent = node;
    leaf->edge.assign(tokens.begin() + node->end, tokens.end());
    leaf->end = length;
    keep(leaf.get(), make());
    if (token_words_ > 0 && std::ssize(words) >= length * token_words_) {
      leaf->words.assign(words.begin() + node->end * token_words_,
                         words.begin() + length * token_words_);
      num_words_ += leaf->words.size();
    }
    std::unique_ptr<Node>& slot = node->children[leaf->edge.front()];
    slot = std::move(leaf);
    node = slot.get();
    if (teller_ != nullptr) store_blocks(key, *node, tokens);
  } else if (has_states_ &&
             stepper_.resumed_length(node->prefix, length) < length) {  // this one has its state
    keep(node, make());
  }
  ++num_changes_;
  node->last_use = now;
  rank(node);
  hold(node);
  return node;
}

// `tokens`: from the root to the node's end.
void PrefixTree::store_blocks(const PrefixKey& key, Node& node, std::span<const int32_t> tokens) {
  const Node* before = node.parent;
  while (before != nullptr && before->blocks.empty()) before = before->parent;
  node.blocks =
      teller_->store({key.adapter, key.tenant}, tokens, teller_->blocks_of(node.parent->end),
                     before != nullptr ? before->blocks.back() : 0);
}

void PrefixTree::store_blocks() {
  visit([this](const Kept& kept) { store_blocks(*kept.key, *kept.node, kept.tokens); });
}

void PrefixTree::use(Node* node, double now) {
  hold(node);
  ++num_changes_;
  for (Node* each = node; each->parent != nullptr; each = each->parent) {
    ++each->uses;
    each->last_use = now;
    rank(each);
  }
}

void PrefixTree::hold(Node* node) { ++node->holders; }

void PrefixTree::drop(Node* node) {
  if (node != nullptr) --node->holders;
}

void PrefixTree::collect(const Node& node, std::vector<Node*>& leaves) {
  for (const auto& [token, child] : node.children) {
    if (child->is_free_leaf()) leaves.push_back(child.get());
    collect(*child, leaves);
  }
}

// A node goes once all behind it have gone.
int64_t PrefixTree::evictable_blocks(const Node& node, bool& is_held) const {
  int64_t blocks = 0;
  is_held = node.holders > 0;
  for (const auto& [token, child] : node.children) {
    bool is_child_held = false;
    blocks += evictable_blocks(*child, is_child_held);
    is_held = is_held || is_child_held;
  }
  return is_held ? blocks : blocks + edge_blocks(node);
}

int64_t PrefixTree::num_evictable_blocks() const {
  int64_t blocks = 0;
  for (const auto& [key, root] : roots_) {
    bool is_held = false;
    blocks += evictable_blocks(*root, is_held);
  }
  return blocks;
}

void PrefixTree::remove(Node* leaf) {
  Node* const parent = leaf->parent;
  stepper_.release_prefix(leaf->prefix);
  if (teller_ != nullptr) teller_->remove(leaf->blocks);
  --num_prefixes_;
  num_words_ -= leaf->words.size();
  parent->children.erase(leaf->edge.front());
}

// Null where nothing can go.
PrefixTree::Node* PrefixTree::least_leaf() const {
  std::vector<Node*> leaves;
  for (const auto& [key, root] : roots_) collect(*root, leaves);
  if (leaves.empty()) return nullptr;
  return *std::ranges::min_element(
      leaves, {}, [](const Node* node) { return std::pair(node->rank, node->last_use); });
}

PrefixTree::Evicted PrefixTree::evict(double now) {
  Node* const least = least_leaf();
  if (least == nullptr) return {};
  const Evicted evicted{std::ssize(least->edge), now - least->last_use};
  age_ = std::max(age_, least->rank);
  if (show_evicted_) {
    const Node* root = least;
    while (root->parent != nullptr) root = root->parent;
    const auto entry = std::ranges::find_if(
        roots_, [root](const auto& each) { return each.second.get() == root; });
    std::vector<int32_t> tokens(static_cast<size_t>(least->end));
    for (const Node* node = least; node->parent != nullptr; node = node->parent) {
      std::ranges::copy(node->edge, tokens.begin() + node->end - std::ssize(node->edge));
    }
    show_evicted_({&entry->first, tokens, least->prefix, least, least->uses, least->is_stored});
  }
  remove(least);
  std::erase_if(roots_, [](const auto& entry) { return entry.second->children.empty(); });
  return evicted;
}

void PrefixTree::clear() {
  while (Node* const least = least_leaf()) remove(least);
  std::erase_if(roots_, [](const auto& entry) { return entry.second->children.empty(); });
  if (teller_ != nullptr && roots_.empty()) teller_->clear();
}

}  // namespace vitrine::serve
