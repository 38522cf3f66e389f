// SPDX-License-Identifier: Apache-2.0
// Ways to keep keys and values, by name. One is a file with its registration, and for each
// instruction set a file of kernels with a row in that one's table (kernels/cpu/dispatch.cc).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/unique_name.h"
#include "kernels/cpu/cpu_kernels.h"
#include "vitrine/core.h"

namespace vitrine::kv {

/// What a row reads of a position depends on that position's key and value, and on which block of
/// the sequence it stands in, alone: never on the pass that wrote it or on what came with it. A
/// block's bytes are all that there is of it, so that copying them copies it.
struct KvCodec {
  std::string_view name;  // "i16"; a literal
  /// Positions of a storage block, and whether the layout needs just so many: else any multiple of
  /// 16 will do.
  int block_length = 64;
  bool has_one_length = true;
  /// Bytes of one position's key, and value, of one kv head; a block has them for each of its
  /// positions.
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
  /// Its `attend` keeps to AttentionSpan::window, and starts from AttentionSpan::sinks. A layer
  /// that needs what a codec does not say is refused with it.
  bool sees_windows = false, sees_sinks = false;
  /// What is read is what was written, to the bit.
  bool is_exact = false;
  /// A row's bits are the same whatever else is in the step and however its past was fed.
  bool is_invariant = true;
};

/// False where the name is taken.
bool register_codec(const KvCodec& codec);
/// Throws kInvalidArgument naming those that there are.
const KvCodec& find_codec(std::string_view name);
/// In the order of their names.
std::vector<std::string> codec_names();

/// At namespace scope in a codec's file.
#define VITRINE_REGISTER_KV_CODEC(codec)                                  \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(codec_is_registered_) = \
      ::vitrine::kv::register_codec(codec)

}  // namespace vitrine::kv
