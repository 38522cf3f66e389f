// SPDX-License-Identifier: Apache-2.0
// Private to the room: the layers that a calibration has finished, kept beside the result until
// that takes its place, so that a run that was killed goes on behind them.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kept_layer_file.h"

namespace vitrine::compress {

/// The folder `.NAME.tmp-layers` beside a result, held by one run at a time. Not thread-safe.
class KeptLayers {
 public:
  /// What the numbers hang on: a name and a value each ("source", its hash).
  using Fields = std::vector<std::pair<std::string, std::string>>;

  /// Takes up what an earlier run with these fields has kept for `out`, or begins anew. Throws
  /// kInvalidArgument where another run holds the folder or `out` is occupied, kIo.
  KeptLayers(const std::string& out, const Fields& fields);
  KeptLayers(const KeptLayers&) = delete;
  KeptLayers& operator=(const KeptLayers&) = delete;
  /// Removes the folder, unless stay() was called and something is kept.
  ~KeptLayers();

  /// Removes what a run has left for `out`, unless another one holds it.
  static void remove_left(const std::string& out);

  /// Says in one line what was found; empty: nothing.
  const std::string& note() const { return note_; }
  /// Returns where the result can be made until it is whole.
  std::filesystem::path result() const { return folder_ / "result"; }
  /// Returns where the model can be that the engine runs.
  std::filesystem::path model() const { return folder_ / "model"; }
  std::string layer_path(size_t layer) const;
  /// Returns a layer; null where it is not there or damaged. The latter is told in `note`.
  std::unique_ptr<KeptLayerReader> find(size_t layer, std::string& note) const;
  /// Begins to keep a layer. Throws kIo.
  void begin(size_t layer, std::optional<KeptLayerWriter>& writer) const;
  /// Keeps a text under a name.
  void keep_text(const std::string& name, const std::string& text) const;
  /// Returns it again; nothing where it is not there or damaged.
  std::optional<std::string> find_text(const std::string& name) const;
  /// Leaves the folder where it is.
  void stay() { stays_ = true; }

 private:
  class Lock;
  std::string binding(const std::string& name) const;
  std::string text_path(const std::string& name) const;
  void remove_unfinished() const;
  void begin_anew() const;

  std::filesystem::path folder_;
  std::string fields_, note_;
  std::unique_ptr<Lock> lock_;
  bool stays_ = false;
};

}  // namespace vitrine::compress
