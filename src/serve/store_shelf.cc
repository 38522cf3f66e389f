// SPDX-License-Identifier: Apache-2.0
#include "serve/store_shelf.h"

#include <algorithm>
#include <set>

namespace vitrine::serve {

namespace {

bool is_same_scope(const PrefixKey& one, const PrefixKey& other) {
  return one.adapter == other.adapter && one.tenant == other.tenant;
}

int64_t common_length(const StoredRecord& record, std::span<const int32_t> tokens) {
  const std::vector<int32_t>& own = record.shape.history;
  return std::ranges::mismatch(own, tokens).in1 - own.begin();
}

}  // namespace

void StoreShelf::add_record(const PrefixKey& key, const std::string& name, StoredRecord record) {
  known_.insert_or_assign(name, Known{key, std::move(record)});
}

void StoreShelf::drop_record(const std::string& name) { known_.erase(name); }

void StoreShelf::drop_file(const std::string& name) {
  known_.erase(name);
  const auto found = files_.find(name);
  if (found == files_.end()) return;
  bytes_ -= found->second.bytes;
  files_.erase(found);
}

void StoreShelf::touch(const std::string& name, Time now) {
  const auto found = files_.find(name);
  if (found != files_.end()) found->second.used = now;
}

// As BlockPool::resumed_length() has it.
int64_t StoreShelf::resumed(const StoredRecord& record, int64_t common) const {
  const kv::PrefixShape& shape = record.shape;
  if (sizes_.resumes_anywhere()) return common;
  if (sizes_.state_bytes > 0) return shape.state_length <= common ? shape.state_length : 0;
  if (sizes_.holds_window(shape, common)) return common;
  int64_t best = 0;
  for (const int64_t point : shape.window_points) {
    if (point <= common && sizes_.holds_window(shape, point)) best = std::max(best, point);
  }
  return best;
}

StoreShelf::Found StoreShelf::find(const PrefixKey& key, std::span<const int32_t> tokens) const {
  Found best;
  for (const auto& [name, known] : known_) {
    if (!is_same_scope(known.key, key)) continue;
    const int64_t length = resumed(known.record, common_length(known.record, tokens));
    if (length > best.length) best = {name, length};
  }
  return best;
}

StoreShelf::Found StoreShelf::covering(const PrefixKey& key,
                                       std::span<const int32_t> tokens) const {
  Found best;
  for (const auto& [name, known] : known_) {
    if (!is_same_scope(known.key, key)) continue;
    const int64_t length = common_length(known.record, tokens);
    if (length > best.length) best = {name, length};
  }
  return best;
}

const StoredRecord* StoreShelf::record(const std::string& name) const {
  const auto found = known_.find(name);
  return found == known_.end() ? nullptr : &found->second.record;
}

std::string StoreShelf::next_to_go(Time before) const {
  std::set<std::string> parents;
  for (const auto& [name, known] : known_) parents.insert(known.record.parent);
  const std::pair<const std::string, File>* oldest = nullptr;
  for (const auto& file : files_) {
    if (parents.contains(file.first) || file.second.used >= before) continue;
    if (oldest == nullptr || file.second.used < oldest->second.used) oldest = &file;
  }
  return oldest == nullptr ? std::string() : oldest->first;
}

std::vector<std::string> StoreShelf::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : files_) all.push_back(name);
  return all;
}

}  // namespace vitrine::serve
