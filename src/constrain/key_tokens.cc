// SPDX-License-Identifier: Apache-2.0
#include "key_tokens.h"

#include <algorithm>

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxKeyTokens = size_t{1} << 22;  // ids that are kept: 16 MiB

}  // namespace

const std::vector<KeyTokens::Group>& KeyTokens::from(const std::vector<NodeId>& states) {
  if (const auto found = groups_.find(states); found != groups_.end()) return found->second;
  must_write();
  std::vector<Group> made = walk(states);
  size_t count = 0;
  for (const Group& group : made) count += group.ids.size();
  if (num_ids_ + count > kMaxKeyTokens) {
    groups_.clear();
    num_ids_ = 0;
  }
  num_ids_ += count;
  return groups_.emplace(states, std::move(made)).first->second;
}

std::vector<KeyTokens::Group> KeyTokens::walk(const std::vector<NodeId>& states) {
  std::vector<Group> made;
  std::map<std::vector<NodeId>, size_t> places;
  size_t last = 0;  // of made: neighbours lead mostly to the same place
  std::vector<std::vector<NodeId>> at(table_.max_depth + 1, states);
  const auto& nodes = table_.nodes;
  const std::vector<uint32_t>& whole = table_.plain.whole;
  for (uint32_t node = 1; node + 1 < nodes.size();) {
    const uint8_t byte = nodes[node].byte;
    const std::vector<NodeId>& before = at[nodes[node].depth - 1U];
    std::vector<NodeId>& here = at[nodes[node].depth];
    here[0] = byte < 0x20 || byte == '"' || byte == '\\' ? kEmptyNode : pool_.step(before[0], byte);
    if (here[0] == kEmptyNode) {
      node = nodes[node].end;
      continue;
    }
    for (size_t i = 1; i < here.size(); ++i) here[i] = pool_.step(before[i], byte);
    for (uint32_t i = nodes[node].first_id; i < nodes[node + 1].first_id; ++i) {
      const int32_t id = table_.ids[i];
      if ((whole[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) == 0) continue;
      if (last >= made.size() || made[last].states != here) {
        const auto [place, is_new] = places.try_emplace(here, made.size());
        if (is_new) made.push_back({here, {}});
        last = place->second;
      }
      made[last].ids.push_back(id);
    }
    ++node;
  }
  return made;
}

}  // namespace vitrine::constrain
