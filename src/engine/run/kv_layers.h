// SPDX-License-Identifier: Apache-2.0
// Where the CPU's fused kernels keep keys and values, layer by layer, as their codecs have them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/run/executor.h"
#include "kv/codec.h"
#include "kv/mapped_memory.h"
#include "ops/plan.h"

namespace vitrine::engine {

class KvLayers {
 public:
  /// Plans them and takes no memory. Throws kUnsupported for a codec without kernels of this
  /// instruction set, or for this model's attention.
  KvLayers(const ExecutorInputs& inputs, const kernels::CpuKernels& kernel);
  /// Takes the memory. Throws kOutOfMemory.
  void allocate();

  /// Stay at their addresses.
  const std::vector<ops::KvLayer>& layers() const { return layers_; }
  size_t num_bytes() const { return num_bytes_; }
  bool is_invariant() const { return is_invariant_; }
  bool runs_trees() const { return runs_trees_; }
  bool runs_partial_depth() const { return runs_partial_depth_; }
  /// Copies what each layer keeps in a block of one kind: those that see all positions, or those
  /// within a window and of open forms.
  void copy_blocks(bool windowed, int32_t from, int32_t to) const;
  /// Returns the bytes of a block of one kind, in all layers.
  size_t block_bytes(bool windowed) const;
  /// Copy a block of one kind out and in, block_bytes() of it, layer after layer.
  void read_block(bool windowed, int32_t block, std::byte* to) const;
  void write_block(bool windowed, int32_t block, const std::byte* from) const;
  void clear_block(bool windowed, int32_t block) const;
  /// Returns whether a layer has keys and values that no other one reads.
  bool keeps_own(int layer) const;
  /// Gives back the memory of such a layer's keys and values, which are zeros then.
  void forget_layer(int layer) const;

 private:
  /// The two parts of a layer's memory: keys and values, or closed and open forms of blocks.
  struct Plane {
    size_t block_bytes = 0;
    int64_t blocks = 0;
    bool is_windowed = false;
    size_t num_bytes() const { return block_bytes * static_cast<size_t>(blocks); }
  };
  void plan_layer(const ExecutorInputs& inputs, const kernels::CpuKernels& kernel, int layer);
  /// Calls `visit` with the address and the bytes of a block in each plane of one kind.
  template <typename Visit>
  void visit_planes(bool windowed, int32_t block, Visit visit) const;

  std::vector<ops::KvLayer> layers_;
  std::vector<bool> is_shared_;                                   // [layers]: others read it
  std::vector<std::pair<Plane, Plane>> planes_;                   // [layers]
  std::vector<std::unique_ptr<kernels::TileCodec>> tile_codecs_;  // at their addresses
  std::optional<kv::MappedMemory> memory_;
  size_t num_bytes_ = 0;
  bool is_invariant_ = true, runs_trees_ = true, runs_partial_depth_ = true;
};

}  // namespace vitrine::engine
