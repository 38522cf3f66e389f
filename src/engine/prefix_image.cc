// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_image.h"

#include <algorithm>
#include <span>

#include "engine/engine_access.h"
#include "engine/occupant.h"
#include "engine/run/block_access.h"
#include "engine/run/kv_choice.h"
#include "engine/run/loaded_model.h"

namespace vitrine::engine {

namespace {

using Kind = BlockAccess::Kind;

BlockAccess& require_access(const LoadedModel& model) {
  if (BlockAccess* bytes = model.executor->block_access()) return *bytes;
  throw Error(ErrorKind::kUnsupported,
              "keys and values cannot be read out here (" + model.summary.kernels + " kernels, " +
                  model.summary.device + "); expected an engine on the CPU's fused kernels");
}

/// Calls `visit(kind, index)` for each part of a prefix, in the order of an image's bytes.
template <typename Visit>
void visit_parts(const kv::PrefixBlocks& prefix, int64_t first_block, Visit visit) {
  for (const int32_t block : std::span(prefix.blocks).subspan(static_cast<size_t>(first_block))) {
    visit(Kind::kFull, block);
  }
  for (const int32_t block : prefix.window_blocks) {
    if (block >= 0) visit(Kind::kWindowed, block);
  }
  if (prefix.state.slot >= 0) visit(Kind::kState, prefix.state.slot);
}

}  // namespace

bool has_prefix_images(Engine& engine) {
  return EngineAccess::model(engine).executor->block_access() != nullptr;
}

ImageSizes image_sizes(Engine& engine) {
  const LoadedModel& model = EngineAccess::model(engine);
  const BlockAccess& bytes = require_access(model);
  return {model.pool.block_size(), model.pool.has_full_layers() ? bytes.num_bytes(Kind::kFull) : 0,
          model.pool.has_windows() ? bytes.num_bytes(Kind::kWindowed) : 0,
          model.pool.has_states() ? bytes.num_bytes(Kind::kState) : 0,
          model.pool.has_windows() ? model.kv_blocks.window : 0};
}

bool ImageSizes::holds_window(const kv::PrefixShape& shape, int64_t length) const {
  const int64_t end = (length + block_size - 1) / block_size;
  if (std::ssize(shape.holds_window) < end) return false;
  for (int64_t i = kv::first_window_block(length, window, block_size); i < end; ++i) {
    if (shape.holds_window[static_cast<size_t>(i)] == 0) return false;
  }
  return true;
}

void clear_taken_blocks(Engine& engine) {
  const Occupied occupied(EngineAccess::occupant(engine));
  LoadedModel& model = EngineAccess::model(engine);
  BlockAccess& blocks = require_access(model);
  model.pool.clear_taken([&blocks](bool windowed, int32_t block) {
    blocks.clear(windowed ? Kind::kWindowed : Kind::kFull, block);
  });
}

uint64_t image_bytes(const ImageSizes& sizes, const kv::PrefixShape& shape) {
  const int64_t blocks = (shape.length() + sizes.block_size - 1) / sizes.block_size;
  const auto windows = static_cast<uint64_t>(
      std::ranges::count_if(shape.holds_window, [](uint8_t holds) { return holds != 0; }));
  const uint64_t full =
      sizes.block_bytes > 0 ? static_cast<uint64_t>(blocks - shape.first_block) : 0;
  return full * sizes.block_bytes + windows * sizes.window_bytes +
         (shape.state_length > 0 ? sizes.state_bytes : 0);
}

PrefixImage read_prefix(Engine& engine, PrefixId prefix, int64_t first_block) {
  const Occupied occupied(EngineAccess::occupant(engine));
  const LoadedModel& model = EngineAccess::model(engine);
  const BlockAccess& from = require_access(model);
  const kv::PrefixBlocks& found = model.pool.prefix(prefix);
  if (found.forced_end > 0) {
    throw Error(ErrorKind::kUnsupported,
                "prefix " + std::to_string(prefix) +
                    " took routes that were forced; expected one that its tokens alone make");
  }
  PrefixImage image{model.pool.shape(prefix, first_block), {}};
  image.bytes.resize(image_bytes(image_sizes(engine), image.shape));
  std::span<std::byte> rest = image.bytes;
  visit_parts(found, image.shape.first_block, [&](Kind kind, int32_t index) {
    const size_t bytes = from.num_bytes(kind);
    from.read(kind, index, rest.first(bytes));
    rest = rest.subspan(bytes);
  });
  return image;
}

PrefixId write_prefix(Engine& engine, const PrefixImage& image, int adapter, PrefixId parent) {
  const Occupied occupied(EngineAccess::occupant(engine));
  LoadedModel& model = EngineAccess::model(engine);
  BlockAccess& to = require_access(model);
  const bool has_ids = std::ranges::all_of(image.shape.history, [&model](int32_t id) {
    return id >= 0 && id < model.summary.vocab_size;
  });
  if (!has_ids || image.bytes.size() != image_bytes(image_sizes(engine), image.shape)) {
    throw Error(ErrorKind::kInvalidArgument,
                "a prefix cannot be made again: its ids or bytes do not fit this model");
  }
  kv::PrefixShape shape = image.shape;
  shape.adapter = model.loaded_adapter(adapter);
  const PrefixId made = model.pool.restore(shape, parent);
  std::span<const std::byte> rest = image.bytes;
  visit_parts(model.pool.prefix(made), image.shape.first_block, [&](Kind kind, int32_t index) {
    const size_t bytes = to.num_bytes(kind);
    to.write(kind, index, rest.first(bytes));
    rest = rest.subspan(bytes);
  });
  return made;
}

std::vector<std::string> weight_files(Engine& engine) {
  return EngineAccess::model(engine).checkpoint.weight_files();
}

std::string config_text(Engine& engine) {
  return EngineAccess::model(engine).checkpoint.config_json();
}

std::string codec_versions(Engine& engine) {
  const LoadedModel& model = EngineAccess::model(engine);
  std::string names;
  for (size_t i = 0; i < model.options.kv_codecs.size(); ++i) {
    const kv::CodecEntry& codec = kv_codec(model.options, static_cast<int64_t>(i));
    names += (i > 0 ? ", " : "") + std::string(codec.name) + " " + std::to_string(codec.version);
  }
  return names;
}

}  // namespace vitrine::engine
