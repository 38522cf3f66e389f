// SPDX-License-Identifier: Apache-2.0
// Adapters of a model whose norms were folded: a folder says in a file of its own what the columns
// and rows of its matrices were multiplied with, and the halves of an adapter are, too.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// The file's name: safetensors, but not to be taken for weights by other programs.
inline constexpr const char* kFoldsName = "vitrine_folds.tensors";
/// Behind a matrix's name there: what its rows, and its columns, were multiplied with.
inline constexpr std::string_view kFoldedRows = ".rows", kFoldedColumns = ".columns";

/// What a matrix was multiplied with. An empty vector: nothing.
struct AdapterFold {
  std::vector<float> rows;     ///< a factor for each row: for those of an adapter's B
  std::vector<float> columns;  ///< a factor for each column: for those of an adapter's A
};

/// The folds of a checkpoint, by module. Immutable.
class AdapterFolds {
 public:
  /// Reads those of a folder; others have none. Throws kIo, and kBadFile for a file of folds that
  /// is none.
  explicit AdapterFolds(const Checkpoint& checkpoint);

  /// Returns null for a module that is as its source has it. Throws kUnsupported for one that was
  /// folded by factors that nobody knows; `adapter` is named.
  const AdapterFold* find(const std::string& module, const std::string& adapter) const;
  /// Returns the modules that were folded by factors that nobody knows.
  const std::set<std::string>& unknown() const { return unknown_; }
  /// Returns all that are known, by module.
  const std::map<std::string, AdapterFold>& all() const { return folds_; }

 private:
  void read_file(const std::string& path);
  void read_manifest(const std::string& path);

  std::string folder_;
  std::map<std::string, AdapterFold> folds_;
  std::set<std::string> unknown_;  // modules whose factors a folder does not have
};

/// The adapter_config.json's field of an adapter that was trained on the folded model itself.
inline constexpr const char* kMadeForFolded = "vitrine_made_for_folded";

/// Multiplies a half of an adapter, [rows, cols], as the module's matrix was: the columns of A, or
/// the rows of B. Throws kBadFile where the fold has other sizes; `adapter` is named.
void fold_half(const AdapterFold& fold, bool is_a, int64_t rows, int64_t cols,
               std::span<float> values, const std::string& adapter);

}  // namespace vitrine::model
