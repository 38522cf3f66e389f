// SPDX-License-Identifier: Apache-2.0
// A prefix as bytes beside the engine that has it, and back into an engine.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "kv/prefix_shape.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Says how many bytes there are of each part of a prefix.
struct ImageSizes {
  int64_t block_size = 0;    // positions
  uint64_t block_bytes = 0;  // of layers that see all positions; 0: there are none
  uint64_t window_bytes =
      0;                     // of a block of layers within a window; 0: they have none of their own
  uint64_t state_bytes = 0;  // 0: the model keeps no states
  int64_t window = 0;        // positions that are seen at most where there are window blocks

  /// Whether a prefix is gone on from at each of its positions.
  bool resumes_anywhere() const { return window_bytes == 0 && state_bytes == 0; }
  /// Whether the blocks that a prefix holds are all that are seen behind its first `length` tokens.
  bool holds_window(const kv::PrefixShape& shape, int64_t length) const;
  bool operator==(const ImageSizes&) const = default;
};

/// A prefix, but for the blocks before its shape's first_block. Bytes are those of its blocks, of
/// the window blocks that it holds, and of its state.
struct PrefixImage {
  kv::PrefixShape shape;
  std::vector<std::byte> bytes;
};

/// Returns whether the host can reach what the engine keeps in its blocks.
bool has_prefix_images(Engine& engine);
/// Return the sizes of an engine's parts, and the bytes of all that a shape has of them.
ImageSizes image_sizes(Engine& engine);
uint64_t image_bytes(const ImageSizes& sizes, const kv::PrefixShape& shape);

/// Has blocks that are taken from now on cleared first, so that what a last block holds behind its
/// positions is no other sequence's.
void clear_taken_blocks(Engine& engine);

/// Copies a prefix out, from the block `first_block` on. Throws kInvalidArgument for an unknown
/// one, kUnsupported where the engine has no images, or some positions took routes that were
/// forced.
PrefixImage read_prefix(Engine& engine, PrefixId prefix, int64_t first_block);
/// Makes a prefix of an image; its first blocks are those of `parent`, where the image leaves some
/// out. `adapter` is as Stepper::create_sequence() takes it. Throws kOutOfMemory where there is no
/// room, kInvalidArgument for an image that does not fit.
PrefixId write_prefix(Engine& engine, const PrefixImage& image, int adapter, PrefixId parent);

/// Returns the names of the files that the engine's weights were read from, the text of the config
/// that they were read by, and codecs with their versions ("i16 1"; one where all layers have it).
std::vector<std::string> weight_files(Engine& engine);
std::string config_text(Engine& engine);
std::string codec_versions(Engine& engine);

}  // namespace vitrine::engine
