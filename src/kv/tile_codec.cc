// SPDX-License-Identifier: Apache-2.0
// Codecs that keep blocks open and closed and give tiles (vitrine/kv_codec.h): what the kernels'
// walk asks for, asked of a KvCodec.
#include <string>
#include <utility>

#include "kv/codec.h"

namespace vitrine::kv {
namespace {

using kernels::KvView;
using kernels::TileCodec;

static_assert(kKvTilePositions == kernels::kAttentionBlock);
static_assert(largest_kv_tile_number(128) == kernels::largest_kv_number(128) &&
              largest_kv_tile_number(256) == kernels::largest_kv_number(256) &&
              largest_kv_tile_number(512) == kernels::largest_kv_number(512));
// A query's readings are the codec's to write.
static_assert(sizeof(KvReading) == sizeof(kernels::TileReading) &&
              static_cast<int>(KvReading::kFine) == static_cast<int>(kernels::TileReading::kFine));
static_assert(sizeof(KvBlockMass) == sizeof(kernels::BlockMass) &&
              offsetof(KvBlockMass, sum) == offsetof(kernels::BlockMass, sum));

const KvCodec& codec_of(const TileCodec& tiles) {
  return *static_cast<const KvCodec*>(tiles.codec);
}
KvHead head_of(const TileCodec& tiles, int32_t kv_head) {
  return {tiles.layer, kv_head, tiles.head_dim};
}

std::byte* place(void* plane, const KvView& kv, int64_t block, int32_t kv_head, int64_t bytes) {
  return static_cast<std::byte*>(plane) + (block * kv.kv_heads + kv_head) * bytes;
}
std::byte* open_block(const KvView& kv, int32_t block, int32_t kv_head) {
  return place(kv.values, kv, block, kv_head, kv.tiles->open_bytes);
}

void write(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head, const float* key,
           const float* value) {
  codec_of(*kv.tiles).write_position(head_of(*kv.tiles, kv_head), open_block(kv, block, kv_head),
                                     offset, key, value);
}

void close(const KvView& kv, int32_t open, int32_t block, int32_t kv_head) {
  codec_of(*kv.tiles).close_block(head_of(*kv.tiles, kv_head), open_block(kv, open, kv_head),
                                  place(kv.keys, kv, block, kv_head, kv.tiles->closed_bytes));
}

void transform_query(const KvView& kv, int32_t kv_head, float* query) {
  codec_of(*kv.tiles).transform_query(head_of(*kv.tiles, kv_head), query);
}
void transform_output(const KvView& kv, int32_t kv_head, float* output) {
  codec_of(*kv.tiles).transform_output(head_of(*kv.tiles, kv_head), output);
}

void decode(const TileCodec& tiles, const kernels::TileSource& from, const kernels::TileRoom& room,
            kernels::Tile& tile) {
  const KvTileSource source{head_of(tiles, from.kv_head),         from.open,  from.closed,
                            static_cast<KvReading>(from.reading), from.first, from.positions};
  KvTile given{tile.keys, tile.values, tile.key_scales, tile.value_scales};
  codec_of(tiles).decode_to_tile(
      source, {room.keys, room.values, room.key_scales, room.value_scales}, given);
  tile = {given.keys, given.values, given.key_scales, given.value_scales};
}

KvBlockChoice choice_of(const TileCodec& tiles, const kernels::BlockChoice& of) {
  const auto blocks = static_cast<size_t>(of.blocks);
  KvBlockChoice choice;
  choice.head = head_of(tiles, of.kv_head);
  choice.position = of.position;
  choice.scale = of.scale;
  choice.query = {of.query, static_cast<size_t>(tiles.head_dim)};
  choice.readings = {reinterpret_cast<KvReading*>(of.readings), blocks};
  if (of.masses != nullptr) {
    choice.masses = {reinterpret_cast<const KvBlockMass*>(of.masses), blocks};
  }
  choice.base = of.base;
  choice.table = of.table;
  choice.stride = of.stride;
  return choice;
}

void choose(const TileCodec& tiles, kernels::BlockChoice& blocks) {
  KvBlockChoice choice = choice_of(tiles, blocks);
  codec_of(tiles).choose_blocks(choice);
}
void refine(const TileCodec& tiles, kernels::BlockChoice& blocks) {
  KvBlockChoice choice = choice_of(tiles, blocks);
  codec_of(tiles).refine_blocks(choice);
}

kernels::TileForm form_of(const KvTileForm& form) {
  return {static_cast<kernels::TileKind>(form.kind), form.key_group, form.value_group};
}

[[noreturn]] void refuse(std::string_view name, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, "KV codec '" + std::string(name) + "' " + what);
}

void check_form(std::string_view name, const KvTileForm& form) {
  const auto is_group = [](int group) { return group == 0 || group == 16 || group == 32; };
  if (form.kind > KvTileKind::kInt8) refuse(name, "gives tiles of no known kind");
  if (form.kind != KvTileKind::kInt8 || (is_group(form.key_group) && is_group(form.value_group))) {
    return;
  }
  refuse(name, "has int8 tiles with groups of " + std::to_string(form.key_group) + " and " +
                   std::to_string(form.value_group) + " elements; expected 16, 32 or 0");
}

void check(const KvCodec& codec) {
  const std::string_view name = codec.name();
  if (name.empty()) refuse(name, "has an empty name; expected one, as \"i8g32\"");
  const int length = codec.block_length();
  constexpr int kMostPositions = 256;
  if (length <= 0 || length % kKvTilePositions != 0 || length > kMostPositions) {
    refuse(name, "has blocks of " + std::to_string(length) + " positions; expected a multiple of " +
                     std::to_string(kKvTilePositions) + " up to " + std::to_string(kMostPositions));
  }
  constexpr int kMostLag = 1 << 20;
  if (codec.lag() < 0 || codec.lag() > kMostLag) {
    refuse(name, "has a lag of " + std::to_string(codec.lag()) + "; expected 0 to " +
                     std::to_string(kMostLag));
  }
  check_form(name, codec.open_form());
  check_form(name, codec.closed_form());
  check_form(name, codec.fine_form());
}

}  // namespace

TileCodec tile_codec(const KvCodec& codec, int layer, int head_dim) {
  TileCodec tiles;
  tiles.codec = &codec;
  tiles.layer = layer;
  tiles.head_dim = head_dim;
  tiles.open_bytes = codec.open_bytes(head_dim);
  tiles.closed_bytes = codec.closed_bytes(head_dim);
  tiles.lag = codec.lag();
  tiles.open = form_of(codec.open_form());
  tiles.closed = form_of(codec.closed_form());
  tiles.fine = form_of(codec.fine_form());
  tiles.decode = decode;
  if (tiles.closed_bytes > 0 && codec.chooses_blocks()) tiles.choose = choose;
  if (tiles.closed_bytes > 0 && codec.refines_blocks()) tiles.refine = refine;
  return tiles;
}

std::optional<kernels::KvKernels> find_kernels(const CodecEntry& codec,
                                               const kernels::CpuKernels& table) {
  if (codec.tiles == nullptr) {
    const kernels::KvKernels* found = codec.cpu_kernels(table);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  kernels::KvKernels found{write, table.attend_tiles};
  found.close = close;
  found.transform_query = transform_query;
  found.transform_output = transform_output;
  return found;
}

}  // namespace vitrine::kv

namespace vitrine {

void register_kv_codec(std::shared_ptr<const KvCodec> codec) {
  if (codec == nullptr) kv::refuse("", "is null; expected a codec");
  kv::check(*codec);
  const std::string name(codec->name());
  if (!kv::register_codec(std::move(codec))) {
    kv::refuse(name, "is known already; expected another name");
  }
}

}  // namespace vitrine
