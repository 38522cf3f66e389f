// SPDX-License-Identifier: Apache-2.0
#include "serve/block_teller.h"

#include <algorithm>
#include <bit>
#include <new>
#include <string_view>
#include <utility>

#include "core/sha256.h"

namespace vitrine::serve {

namespace {

constexpr double kUntilNextTry = 1;  // seconds before a listener without room is told again

static_assert(std::endian::native == std::endian::little);  // names are those of such machines

template <typename Value>
std::span<const uint8_t> bytes_of(std::span<const Value> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

uint64_t block_name(Sha256& hash) {
  const Sha256Digest digest = hash.finish();
  uint64_t name = 0;
  for (size_t i = 0; i < sizeof name; ++i) name = name << 8 | digest[i];
  return std::max<uint64_t>(name, 1);  // 0 says that there is none
}

}  // namespace

BlockTeller::BlockTeller(KvBlockListener& listener, std::string model, int64_t block_size,
                         std::vector<std::string> adapters)
    : listener_(listener),
      model_(std::move(model)),
      block_size_(block_size),
      adapters_(std::move(adapters)) {}

uint64_t BlockTeller::root_of(const Owner& owner) const {
  std::string text("vitrine kv blocks\0", 18);
  if (owner.adapter >= 0) text += adapters_[static_cast<size_t>(owner.adapter)];
  text += '\0';
  text += owner.tenant;
  Sha256 hash;
  hash.update(bytes_of(std::span<const char>(text)));
  return block_name(hash);
}

std::vector<uint64_t> BlockTeller::store(const Owner& owner, std::span<const int32_t> ids,
                                         int64_t first, uint64_t parent) {
  const int64_t end = blocks_of(std::ssize(ids));
  if (end <= first) return {};
  const auto size = static_cast<size_t>(block_size_);
  const auto own =
      ids.subspan(static_cast<size_t>(first) * size, static_cast<size_t>(end - first) * size);
  try {
    KvBlockEvent event;
    event.parent = parent;
    event.tokens.assign(own.begin(), own.end());
    event.block_size = block_size_;
    event.adapter = owner.adapter;
    if (owner.adapter >= 0) event.adapter_name = adapters_[static_cast<size_t>(owner.adapter)];
    uint64_t name = parent != 0 ? parent : root_of(owner);
    for (size_t at = 0; at < own.size(); at += size) {
      Sha256 hash;
      hash.update(bytes_of(std::span<const uint64_t>(&name, 1)));
      hash.update(bytes_of(own.subspan(at, size)));
      name = block_name(hash);
      event.blocks.push_back(name);
    }
    std::vector<uint64_t> names = event.blocks;
    events_.push_back(std::move(event));
    return names;
  } catch (...) {  // no memory, OpenSSL's among it
    has_lost_ = true;
    return {};
  }
}

void BlockTeller::remove(std::span<const uint64_t> names) {
  if (names.empty()) return;
  try {
    if (events_.empty() || events_.back().kind != KvBlockEvent::Kind::kRemoved) {
      events_.push_back({.kind = KvBlockEvent::Kind::kRemoved});
    }
    std::vector<uint64_t>& removed = events_.back().blocks;
    removed.insert(removed.end(), names.rbegin(), names.rend());
  } catch (const std::bad_alloc&) {
    has_lost_ = true;
  }
}

void BlockTeller::clear() {
  events_.clear();
  events_.push_back({.kind = KvBlockEvent::Kind::kCleared});
}

void BlockTeller::tell(double now, const std::function<void()>& store_all) {
  if (has_lost_) {
    events_.clear();
    if (now < next_try_) return;
    try {
      has_lost_ = false;
      clear();
      store_all();
    } catch (const std::bad_alloc&) {
      has_lost_ = true;
    }
  }
  if (events_.empty()) return;
  if (!listener_.on_blocks(model_, std::exchange(events_, {}))) has_lost_ = true;
  if (has_lost_) next_try_ = now + kUntilNextTry;
}

}  // namespace vitrine::serve
