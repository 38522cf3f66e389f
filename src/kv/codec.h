// SPDX-License-Identifier: Apache-2.0
// Ways to keep keys and values, by name. One is a file with its registration, and for each
// instruction set a file of kernels with a row in that one's table (kernels/cpu/dispatch.cc); or a
// KvCodec (vitrine/kv_codec.h), which attention reads tile by tile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/unique_name.h"
#include "kernels/cpu/cpu_kernels.h"
#include "vitrine/core.h"
#include "vitrine/kv_codec.h"

namespace vitrine::kv {

/// What a row reads of a position depends on that position's key and value, and on which block of
/// the sequence it stands in, alone: never on the pass that wrote it or on what came with it. A
/// block's bytes are all that there is of it, so that copying them copies it.
struct CodecEntry {
  std::string_view name;  // "i16"; a literal
  /// Positions of a storage block, and whether the layout needs just so many: else any multiple of
  /// 16 will do.
  int block_length = 64;
  bool has_one_length = true;
  /// Bytes of one position's key, and value, of one kv head; a block has them for each of its
  /// positions. Not where `tiles` is set, nor cpu_kernels.
  int64_t (*key_bytes)(int64_t head_dim) = nullptr;
  int64_t (*value_bytes)(int64_t head_dim) = nullptr;
  /// The functions that a table's instruction set has; null: none.
  const kernels::KvKernels* (*cpu_kernels)(const kernels::CpuKernels& table) = nullptr;
  /// The type in which a device's fused kernels keep the elements, in their own layout; none: they
  /// do not have this codec.
  std::optional<DType> device_type = {};
  /// The type to which the reference path rounds the elements; none: it does not have this codec.
  /// With reference_rounds_to_integers it rounds them first to the integers of a head
  /// (kernels::largest_kv_number).
  std::optional<DType> reference_type = {};
  bool reference_rounds_to_integers = false;
  /// Counts the forms that its blocks' bytes have had: bytes of another one mean something else.
  int version = 1;
  /// Its `attend` keeps to AttentionSpan::window, and starts from AttentionSpan::sinks. A layer
  /// that needs what a codec does not say is refused with it.
  bool sees_windows = false, sees_sinks = false;
  /// Keeps blocks open and closed, and gives tiles of them; null: it has kernels of its own.
  const KvCodec* tiles = nullptr;

  /// Whether it can do that with attention, or in a step. Latent attention is a matter of the
  /// kernels (KvKernels::attend_latent).
  bool has(KvFeature feature) const;
  /// What is read is what was written, to the bit.
  bool is_exact = false;
  /// A row's bits are the same whatever else is in the step and however its past was fed.
  bool is_invariant = true;
};

/// Bytes of a block of one kv head in its two planes: keys and values; of a codec that gives tiles
/// the closed form and the open one, whatever block_length says. Latent attention has no second
/// plane: value_dim is 0.
struct PlaneBytes {
  int64_t first = 0, second = 0;
};
PlaneBytes plane_bytes(const CodecEntry& codec, int64_t key_dim, int64_t value_dim,
                       int64_t block_length);
/// Whether blocks have a closed form beside the open one.
bool closes_blocks(const CodecEntry& codec, int64_t head_dim);

/// What the walk over a layer's tiles is told of a codec that gives them.
kernels::TileCodec tile_codec(const KvCodec& codec, int layer, int head_dim);
/// A table's functions of a codec; none: it has none.
std::optional<kernels::KvKernels> find_kernels(const CodecEntry& codec,
                                               const kernels::CpuKernels& table);

/// False where the name is taken: no model can use it then. Thread-safe, as all that follow.
bool register_codec(const CodecEntry& codec);
/// Registers a codec that gives tiles, which is kept for good; where the name is taken, what it
/// names stays.
bool register_codec(std::shared_ptr<const KvCodec> codec);
/// Throws kInvalidArgument naming those that there are.
const CodecEntry& find_codec(std::string_view name);
/// In the order of their names.
std::vector<std::string> codec_names();

/// At namespace scope in a codec's file.
#define VITRINE_REGISTER_KV_CODEC(codec)                                  \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(codec_is_registered_) = \
      ::vitrine::kv::register_codec(codec)

}  // namespace vitrine::kv
