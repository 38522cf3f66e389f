// SPDX-License-Identifier: Apache-2.0
// Private to the room: a layer that a calibration has finished, as a file.
//
// A file has a magic, each matrix (a head, values in as many bits as they have, scales in their
// dtype, zero points), each fold of the layer, and a foot: how many of both, where the folds begin,
// and a SHA-256 of what binds the file and of all that stands before.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_io.h"
#include "core/sha256.h"
#include "layer_method.h"

namespace vitrine::compress {

/// Writes a layer as its matrices are finished: memory holds one.
class KeptLayerWriter {
 public:
  /// `binding`: a text that the reader must give, too. Throws kIo.
  KeptLayerWriter(const std::string& path, const std::string& binding);
  void add(const CalibratedMatrix& matrix);
  /// Makes the file, with those folds. Throws kIo.
  void finish(const Folds& folds, const std::vector<std::string>& tensors);

 private:
  void write(std::span<const std::byte> bytes);

  checkpoint::ReplacementFile file_;
  Sha256 hash_;
  uint64_t size_ = 0, matrices_ = 0;
};

/// Reads it again.
class KeptLayerReader {
 public:
  /// Returns null where the file is missing, damaged, or bound to another text.
  static std::unique_ptr<KeptLayerReader> open(const std::string& path, const std::string& binding);

  /// Throws kIo, and kBadFile for content that no writer makes.
  void read_folds(const Checkpoint& source, Folds& folds);
  /// Calls `visit` with each matrix. `find` returns null for a module that is not quantized.
  /// Throws likewise.
  void read_matrices(const std::function<const PlannedTensor*(const std::string&)>& find,
                     const std::function<void(CalibratedMatrix&&)>& visit);

 private:
  explicit KeptLayerReader(const std::string& path) : file_(path) {}
  std::vector<std::byte> take(uint64_t size);
  template <typename Value>
  std::vector<Value> take_values(uint64_t count);
  template <typename Value>
  Value take_value();
  std::string take_name();
  CalibratedMatrix take_matrix(const std::function<const PlannedTensor*(const std::string&)>& find);
  [[noreturn]] void refuse() const;

  checkpoint::InputFile file_;
  uint64_t at_ = 0, end_ = 0, matrices_ = 0, folds_ = 0, folds_at_ = 0;
};

}  // namespace vitrine::compress
