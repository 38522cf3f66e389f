// SPDX-License-Identifier: Apache-2.0
#include "key_tokens.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxKeyTokens = size_t{1} << 22;  // ids that are kept: 16 MiB
constexpr size_t kMaxPlaces = size_t{1} << 13;     // of 1 KiB

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

uint32_t KeyTokens::place_of(const std::vector<NodeId>& states) {
  const auto [found, is_new] = numbers_.try_emplace(states, static_cast<uint32_t>(places_.size()));
  if (is_new) {
    places_.push_back({states, {}});
    places_.back().next.fill(kUnknown);
  }
  return found->second;
}

uint32_t KeyTokens::find_next(uint32_t place, uint8_t byte) {
  std::vector<NodeId> states = places_[place].states;
  const bool ends = byte < 0x20 || byte == '"' || byte == '\\';
  states[0] = ends ? kEmptyNode : pool_.step(states[0], byte);
  for (size_t i = 1; states[0] != kEmptyNode && i < states.size(); ++i) {
    states[i] = pool_.step(states[i], byte);
  }
  const uint32_t next = states[0] == kEmptyNode ? kNowhere : place_of(states);
  places_[place].next[byte] = next;
  return next;
}

std::vector<KeyTokens::Group> KeyTokens::walk(const std::vector<NodeId>& states) {
  if (places_.size() > kMaxPlaces) {
    places_.clear();
    numbers_.clear();
  }
  constexpr size_t kNoGroup = SIZE_MAX;
  std::vector<Group> made;
  std::vector<size_t> group_of;  // by place
  std::vector<uint32_t> at(table_.max_depth + 1, place_of(states));
  const auto& nodes = table_.nodes;
  const std::vector<uint32_t>& whole = table_.plain.whole;
  for (uint32_t node = 1; node + 1 < nodes.size();) {
    const uint8_t byte = nodes[node].byte;
    const uint32_t before = at[nodes[node].depth - 1U];
    uint32_t here = places_[before].next[byte];
    if (here == kUnknown) here = find_next(before, byte);
    if (here == kNowhere) {
      node = nodes[node].end;
      continue;
    }
    at[nodes[node].depth] = here;
    for (uint32_t i = nodes[node].first_id; i < nodes[node + 1].first_id; ++i) {
      const int32_t id = table_.ids[i];
      if ((whole[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) == 0) continue;
      if (here >= group_of.size()) group_of.resize(places_.size(), kNoGroup);
      size_t& group = group_of[here];
      if (group == kNoGroup) {
        group = made.size();
        made.push_back({places_[here].states, {}});
      }
      made[group].ids.push_back(id);
    }
    ++node;
  }
  return made;
}

}  // namespace vitrine::constrain
