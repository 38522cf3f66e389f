// SPDX-License-Identifier: Apache-2.0
// The room `kv`: the interface of what keeps keys and values, for codecs of a host's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "vitrine/core.h"

namespace vitrine {

/// Positions of a tile: attention walks so many at once, in order.
inline constexpr int kKvTilePositions = 64;

/// The largest magnitude of a number in a KvTileKind::kInt16 tile, by the elements of a head: the
/// sum of head_dim products of two of them fits 32 bits.
constexpr int largest_kv_tile_number(int head_dim) {
  return head_dim <= 128 ? 4095 : head_dim <= 256 ? 2895 : 2047;
}

/// What the numbers of a tile are; docs/numerics.md has the order of operations of each.
///
/// With n the elements of a head, s its row (kv_tile_row) and j a position of the tile:
enum class KvTileKind : uint8_t {
  /// float32: keys [n][64], values [64][s].
  kFloat,
  /// int16 up to largest_kv_tile_number: keys [(n + 1) / 2][64][2], elements 2i and 2i + 1 side by
  /// side; values [32][s][2], positions 2j and 2j + 1 side by side; a float32 scale for each
  /// position: key_scales [64], value_scales [64].
  kInt16,
  /// int8, laid out as kInt16; its scales go by KvTileForm's groups.
  kInt8,
};

/// Elements from one pair of positions of a tile's values to the next: n, up to a multiple of 16.
constexpr int kv_tile_row(int head_dim) { return (head_dim + 15) / 16 * 16; }

/// One way in which a codec gives tiles.
struct KvTileForm {
  KvTileKind kind = KvTileKind::kFloat;  ///< of keys and of values
  /// kInt8: so many elements of a position share a scale, 16 or 32: key_scales and value_scales are
  /// [groups][64], the last group what is left. 0: each element has a scale for all positions of a
  /// block, [kv_tile_row(n)]; keys' are multiplied into the query once a tile, values' into what is
  /// added.
  int key_group = 32;
  int value_group = 32;  ///< the same of values
};

/// Where a tile goes. Each pointer leads to room for the largest form, on a cache line; a codec
/// that has the numbers in this layout already lets it point at them instead. What stands behind
/// the positions that are read may be anything.
struct KvTile {
  const void* keys = nullptr;           ///< numbers of KvTileForm::kind
  const void* values = nullptr;         ///< the same
  const float* key_scales = nullptr;    ///< of integers
  const float* value_scales = nullptr;  ///< the same
};
/// The same room, to be written.
struct KvTileRoom {
  void* keys = nullptr;           ///< see KvTile
  void* values = nullptr;         ///< see KvTile
  float* key_scales = nullptr;    ///< see KvTile
  float* value_scales = nullptr;  ///< see KvTile
};

/// Which head a block is of.
struct KvHead {
  int layer = 0;     ///< of the model
  int kv_head = 0;   ///< of the layer
  int head_dim = 0;  ///< elements of a key, and of a value
};

/// How a query reads a closed block: not at all, in its closed form, or in its fine form.
enum class KvReading : uint8_t { kSkip, kClosed, kFine };

/// Which part of a block becomes a tile.
struct KvTileSource {
  KvHead head = {};                        ///< whose block it is
  const std::byte* open = nullptr;         ///< of a block that is read open, else null
  const std::byte* closed = nullptr;       ///< of one that is read closed, else null
  KvReading reading = KvReading::kClosed;  ///< kClosed or kFine, of one that is read closed
  int first = 0;      ///< the tile's first position in the block, a multiple of 64
  int positions = 0;  ///< how many are read, 1 to 64
};

/// What a query's scores over a block come to, as its closed form gives them.
struct KvBlockMass {
  float max = 0;  ///< the largest score
  float sum = 0;  ///< of exp(score - max)
};

/// One query head's closed blocks, ascending: block i has the positions from i * block_length on.
struct KvBlockChoice {
  KvHead head = {};                   ///< whose blocks they are
  int64_t position = 0;               ///< of the query
  float scale = 0;                    ///< a score is scale times the dot
  std::span<const float> query = {};  ///< [head_dim], as transform_query left it
  /// [blocks] how each is read, set by the codec; kClosed at first.
  std::span<KvReading> readings = {};
  /// [blocks] for refine_blocks, else empty; of blocks that are skipped 0.
  std::span<const KvBlockMass> masses = {};
  const std::byte* base = nullptr;  ///< see closed()
  const int32_t* table = nullptr;   ///< see closed()
  int64_t stride = 0;               ///< see closed()

  /// What close_block wrote for block `index`.
  const std::byte* closed(size_t index) const { return base + table[index] * stride; }
};

/// What a model, or a host, may ask of attention beside its plain walk.
enum class KvFeature : uint8_t {
  kWindows,       ///< layers in which a token sees the last positions alone
  kSinks,         ///< heads with a score that has no value
  kLatent,        ///< latent attention (MLA): one key for all heads, part of which is the value
  kTrees,         ///< drafts in a tree: branches of a sequence side by side
  kPartialDepth,  ///< steps of a part of the layers (early exit)
};

/// Keeps keys and values in blocks of a fixed number of positions, each kv head's by itself.
///
/// A block has an open form, which positions are written into one by one, in any order, and where
/// the codec closes blocks a closed form, which close_block makes once all positions are there. A
/// query at position p reads a block closed where the block's last position is below p - lag(), and
/// open otherwise: whichever pass closed it, so that how a prompt was cut into steps changes no
/// bit. Both forms are kept as long as a query may come that needs them; where positions are
/// dropped and the open form is gone, the engine computes the positions again. A form is bytes that
/// may be copied; it may depend on the head, on the position in the block and on the keys and
/// values of the block, on nothing else: no counters, no other blocks, no batch.
///
/// Functions are called from any thread, for different positions and blocks at once; those that
/// are noexcept while a step runs: they allocate nothing and take no lock.
class VITRINE_API KvCodec {
 public:
  virtual ~KvCodec() = default;
  /// Name for EngineOptions::kv_codecs ("i8g32"); stays valid.
  virtual std::string_view name() const = 0;
  /// Whether it can do that; a model or a step that asks for what it can't is refused by name.
  /// kLatent: no codec of a host can yet.
  virtual bool has(KvFeature feature) const { return feature != KvFeature::kLatent; }

  /// Counts the layouts that its forms have had. Raise it when their bytes get another meaning:
  /// what a file keeps of another version is computed again (ServerOptions::prefix_store).
  virtual int version() const { return 1; }

  /// Positions of a block, a multiple of 64 up to 256.
  virtual int block_length() const { return kKvTilePositions; }
  /// Bytes of a block of one kv head in its open form, a multiple of 64.
  virtual int64_t open_bytes(int head_dim) const = 0;
  /// Bytes of a block of one kv head in its closed form, with what the fine form needs; 0: blocks
  /// are never closed.
  virtual int64_t closed_bytes(int /*head_dim*/) const { return 0; }
  /// How many positions behind a closed block still read it open.
  virtual int lag() const { return 0; }
  /// The tiles that open blocks give; it stays as it is.
  virtual KvTileForm open_form() const = 0;
  /// Those that closed ones give.
  virtual KvTileForm closed_form() const { return {}; }
  /// Those that closed ones give where they are read in their fine form.
  virtual KvTileForm fine_form() const { return {}; }

  /// Rotates a query, once, before anything is read; key and value are write_position's to rotate.
  /// `query`: [head_dim], behind the rotary embedding.
  virtual void transform_query(const KvHead&, float* /*query*/) const noexcept {}
  /// Rotates back what attention gives for a query, once. `output`: [head_dim].
  virtual void transform_output(const KvHead&, float* /*output*/) const noexcept {}

  /// Writes a position's key and value, [head_dim] each, into an open block. Others of the block
  /// may be written at the same time.
  virtual void write_position(const KvHead& head, std::byte* open, int offset, const float* key,
                              const float* value) const noexcept = 0;
  /// Makes the closed form of a block whose positions are all there.
  virtual void close_block(const KvHead&, const std::byte* /*open*/,
                           std::byte* /*closed*/) const noexcept {}
  /// Gives a tile, in room that is there or by pointing at the block's own bytes.
  virtual void decode_to_tile(const KvTileSource& from, const KvTileRoom& room,
                              KvTile& tile) const noexcept = 0;

  /// Whether choose_blocks is asked (which rules kWindows out), for each query by itself; none
  /// shares tiles with another then.
  virtual bool chooses_blocks() const { return false; }
  /// Whether refine_blocks is asked, under the same conditions.
  virtual bool refines_blocks() const { return false; }
  /// Says which closed blocks are read, before any is.
  virtual void choose_blocks(KvBlockChoice&) const noexcept {}
  /// Says it again when the scores of a first pass over the closed forms are known: a second pass
  /// reads the blocks as named here, kFine in their fine form.
  virtual void refine_blocks(KvBlockChoice&) const noexcept {}
};

/// Makes a codec known by its name, for good; kv_codec_names() and EngineOptions::kv_codecs have it
/// from then on. The CPU's fused kernels run it, on every instruction set; other paths refuse it by
/// name. Thread-safe. Throws kInvalidArgument for a name that is empty or taken, and for lengths
/// and forms that are none of the above.
VITRINE_API void register_kv_codec(std::shared_ptr<const KvCodec> codec);

}  // namespace vitrine
