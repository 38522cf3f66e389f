// SPDX-License-Identifier: Apache-2.0
#include "engine/run/kv_layers.h"

#include <cstring>
#include <string>

#include "engine/run/kv_budget.h"
#include "engine/run/kv_choice.h"

namespace vitrine::engine {

namespace {

[[noreturn]] void refuse(const kv::CodecEntry& codec, const std::string& what) {
  throw Error(ErrorKind::kUnsupported, "keys and values as " + std::string(codec.name) +
                                           " have no kernels for " + what +
                                           "; use another of kv_codecs, as f32");
}

}  // namespace

KvLayers::KvLayers(const ExecutorInputs& inputs, const kernels::CpuKernels& kernel) {
  is_shared_.resize(static_cast<size_t>(inputs.graph.num_layers));
  for (int layer = 0; layer < inputs.graph.num_layers; ++layer) plan_layer(inputs, kernel, layer);
}

void KvLayers::plan_layer(const ExecutorInputs& inputs, const kernels::CpuKernels& kernel,
                          int layer) {
  const ops::Graph& graph = inputs.graph;
  const kv::CodecEntry& codec = kv_codec(inputs.options, layer);
  const std::optional<kernels::KvKernels> found = kv::find_kernels(codec, kernel);
  if (!found) refuse(codec, kernel.isa);
  if (graph.value_dim > 0 && found->attend_latent == nullptr) refuse(codec, "latent attention");
  is_invariant_ = is_invariant_ && codec.is_invariant;
  runs_trees_ = runs_trees_ && codec.has(KvFeature::kTrees);
  runs_partial_depth_ = runs_partial_depth_ && codec.has(KvFeature::kPartialDepth);
  const ops::KvShape shape = graph.kv_shape(layer);
  kernels::KvView view;
  view.kv_heads = static_cast<int32_t>(shape.kv_heads);
  view.head_dim = static_cast<int32_t>(shape.head_dim);
  view.value_dim = static_cast<int32_t>(graph.value_dim);
  view.block_size = inputs.options.kv_block_size;
  const bool has_window =
      !inputs.is_windowed.empty() && inputs.is_windowed[static_cast<size_t>(layer)];
  ops::KvLayer planned{view, *found, std::string(codec.name), has_window ? inputs.table_stride : 0};
  bool is_second_windowed = has_window;
  if (codec.tiles != nullptr) {
    tile_codecs_.push_back(
        std::make_unique<kernels::TileCodec>(kv::tile_codec(*codec.tiles, layer, view.head_dim)));
    planned.view.tiles = tile_codecs_.back().get();
    planned.closes_blocks = planned.view.tiles->closed_bytes > 0;
    // Open forms have blocks of their own where there are any.
    if (planned.closes_blocks) is_second_windowed = inputs.num_window_blocks > 0;
    planned.open_offset = is_second_windowed ? inputs.table_stride : 0;
  }
  layers_.push_back(planned);
  planes_.emplace_back();
  if (shape.source != layer) is_shared_[static_cast<size_t>(shape.source)] = true;
  if (shape.source != layer || graph.keeps_state(layer)) return;  // it keeps none
  const BlockPlanes bytes = layer_block_bytes(inputs.options, graph, layer);
  const auto plane = [&](uint64_t block_bytes, bool is_windowed) {
    return Plane{static_cast<size_t>(block_bytes),
                 is_windowed ? inputs.num_window_blocks : inputs.num_blocks, is_windowed};
  };
  planes_.back() = {plane(bytes.keys, has_window), plane(bytes.values, is_second_windowed)};
  num_bytes_ += planes_.back().first.num_bytes() + planes_.back().second.num_bytes();
}

void KvLayers::allocate() {
  memory_.emplace(num_bytes_, "the KV cache");
  std::byte* next = memory_->data();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    layers_[layer].view.keys = next;
    next += planes_[layer].first.num_bytes();
    layers_[layer].view.values = next;
    next += planes_[layer].second.num_bytes();
  }
}

template <typename Visit>
void KvLayers::visit_planes(bool windowed, int32_t block, Visit visit) const {
  const auto index = static_cast<size_t>(block);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto& [first, second] = planes_[layer];
    const kernels::KvView& view = layers_[layer].view;
    if (first.is_windowed == windowed && first.block_bytes > 0) {
      visit(static_cast<std::byte*>(view.keys) + index * first.block_bytes, first.block_bytes);
    }
    if (second.is_windowed == windowed && second.block_bytes > 0) {
      visit(static_cast<std::byte*>(view.values) + index * second.block_bytes, second.block_bytes);
    }
  }
}

void KvLayers::copy_blocks(bool windowed, int32_t from, int32_t to) const {
  const ptrdiff_t distance = ptrdiff_t{to} - from;
  visit_planes(windowed, from, [distance](std::byte* block, size_t bytes) {
    std::memcpy(block + distance * static_cast<ptrdiff_t>(bytes), block, bytes);
  });
}

size_t KvLayers::block_bytes(bool windowed) const {
  size_t all = 0;
  for (const auto& [first, second] : planes_) {
    all += first.is_windowed == windowed ? first.block_bytes : 0;
    all += second.is_windowed == windowed ? second.block_bytes : 0;
  }
  return all;
}

void KvLayers::read_block(bool windowed, int32_t block, std::byte* to) const {
  visit_planes(windowed, block, [&to](const std::byte* from, size_t bytes) {
    std::memcpy(to, from, bytes);
    to += bytes;
  });
}

void KvLayers::write_block(bool windowed, int32_t block, const std::byte* from) const {
  visit_planes(windowed, block, [&from](std::byte* to, size_t bytes) {
    std::memcpy(to, from, bytes);
    from += bytes;
  });
}

void KvLayers::clear_block(bool windowed, int32_t block) const {
  visit_planes(windowed, block, [](std::byte* at, size_t bytes) { std::memset(at, 0, bytes); });
}

bool KvLayers::keeps_own(int layer) const {
  const auto index = static_cast<size_t>(layer);
  const auto& [first, second] = planes_[index];
  return !is_shared_[index] && first.num_bytes() + second.num_bytes() > 0;
}

void KvLayers::forget_layer(int layer) const {
  const auto index = static_cast<size_t>(layer);
  const auto& [first, second] = planes_[index];
  // Both parts lie side by side.
  kv::MappedMemory::drop_whole_pages(layers_[index].view.keys,
                                     first.num_bytes() + second.num_bytes());
}

}  // namespace vitrine::engine
