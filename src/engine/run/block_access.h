// SPDX-License-Identifier: Apache-2.0
// The bytes of an executor's blocks and states, for who keeps them elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace vitrine::engine {

class BlockAccess {
 public:
  /// What has a number: a block of layers that see all positions, one of those within a window, a
  /// slot of a state.
  enum class Kind : uint8_t { kFull, kWindowed, kState };
  virtual ~BlockAccess() = default;
  /// Returns the bytes of one, in all layers; 0: there are none of this kind.
  virtual size_t num_bytes(Kind kind) const = 0;
  /// Copies one's bytes out. `to` has num_bytes().
  virtual void read(Kind kind, int32_t index, std::span<std::byte> to) const = 0;
  /// Copies one's bytes in, as read() gave them on an executor of the same model and options.
  virtual void write(Kind kind, int32_t index, std::span<const std::byte> from) = 0;
  /// Sets a block's bytes to 0; of no state.
  virtual void clear(Kind kind, int32_t index) = 0;
};

}  // namespace vitrine::engine
