// SPDX-License-Identifier: Apache-2.0
#include "kv/codec.h"

#include <mutex>
#include <utility>

#include "core/registry.h"

namespace vitrine::kv {

namespace {

/// Entries stay at their addresses; a host adds some while engines look others up.
struct LockedRegistry {
  std::mutex mutex;
  core::Registry<std::string, CodecEntry> codecs{"KV codec"};
  std::vector<std::shared_ptr<const KvCodec>> owned;
};

LockedRegistry& registry() {
  static LockedRegistry all;
  return all;
}

}  // namespace

bool CodecEntry::has(KvFeature feature) const {
  if (tiles != nullptr) {
    if (feature == KvFeature::kLatent) return false;
    // What lies below a window is given back, closed or not, so that there is no choice.
    const bool chooses = tiles->chooses_blocks() || tiles->refines_blocks();
    return tiles->has(feature) && !(chooses && feature == KvFeature::kWindows);
  }
  if (feature == KvFeature::kWindows) return sees_windows;
  return feature != KvFeature::kSinks || sees_sinks;
}

PlaneBytes plane_bytes(const CodecEntry& codec, int64_t key_dim, int64_t value_dim,
                       int64_t block_length) {
  if (codec.tiles != nullptr) {
    const int head_dim = static_cast<int>(key_dim);
    return {codec.tiles->closed_bytes(head_dim), codec.tiles->open_bytes(head_dim)};
  }
  return {block_length * codec.key_bytes(key_dim),
          value_dim > 0 ? block_length * codec.value_bytes(value_dim) : 0};
}

bool closes_blocks(const CodecEntry& codec, int64_t head_dim) {
  return codec.tiles != nullptr && codec.tiles->closed_bytes(static_cast<int>(head_dim)) > 0;
}

bool register_codec(const CodecEntry& codec) {
  const std::scoped_lock lock(registry().mutex);
  return registry().codecs.add(std::string(codec.name), codec);
}

bool register_codec(std::shared_ptr<const KvCodec> codec) {
  CodecEntry entry;
  entry.name = codec->name();
  entry.block_length = codec->block_length();
  entry.version = codec->version();
  entry.tiles = codec.get();
  const std::scoped_lock lock(registry().mutex);
  if (registry().codecs.find(entry.name) != nullptr) return false;
  registry().owned.push_back(std::move(codec));
  return registry().codecs.add(std::string(entry.name), entry);
}

const CodecEntry& find_codec(std::string_view name) {
  {
    const std::scoped_lock lock(registry().mutex);
    if (const CodecEntry* found = registry().codecs.find(name)) return *found;
  }
  std::string known;
  for (const std::string& each : codec_names()) known += (known.empty() ? "" : ", ") + each;
  throw Error(ErrorKind::kInvalidArgument, "engine option 'kv_codecs' names '" + std::string(name) +
                                               "'; expected one of: " + known);
}

std::vector<std::string> codec_names() {
  const std::scoped_lock lock(registry().mutex);
  std::vector<std::string> names;
  for (const CodecEntry& codec : registry().codecs.entries()) names.emplace_back(codec.name);
  return names;
}

}  // namespace vitrine::kv
