// SPDX-License-Identifier: Apache-2.0
// Private to the room: the files that make up a model, as a signature names them.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::gates {

/// The name of a model's file where the model is that file.
inline constexpr char kOnlyFile[] = ".";

/// Files and folders of a model that do not count.
class IgnoredPaths {
 public:
  /// Adds a path relative to the model. Returns false for one that is empty, absolute, no UTF-8,
  /// leads out of the model or is the model itself.
  bool add(const std::string& path);
  /// Adds what Git keeps in a folder.
  void add_git();
  /// Adds a file where it lies within the model's folder.
  void add_within(const std::string& model, const std::string& file);

  /// Returns true for an ignored path, and for all that a folder of them holds.
  bool contains(std::string_view name) const;
  /// Sorted, each once.
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
};

/// What a folder holds, or a model that is one file.
struct ModelEntry {
  std::string name = {};  // relative to the model, or kOnlyFile
  std::string path = {};
  uint64_t bytes = 0;
  std::string problem = {};  // why it cannot be signed, or empty: "is a symbolic link"
};

/// Lists all but folders and what is ignored, in the order of the names' parts. Throws
/// kInvalidArgument where nothing is at `model`, the model is a link or a part of a split GGUF
/// file, and kIo.
std::vector<ModelEntry> list_model(const std::string& model, const IgnoredPaths& ignored,
                                   bool allows_links);

/// Returns the name of the model's folder or file, also where its path is "." or ends with "/".
std::string model_name(const std::string& model);

/// Returns true where `left` comes first: names are compared part by part, by their bytes.
bool is_earlier_name(std::string_view left, std::string_view right);

/// Returns a file's SHA-256, which takes a piece at a time. Throws kIo, also where the file changes
/// in size, and kCancelled where the flag is raised.
std::string hash_of_file(const ModelEntry& file, const std::atomic<bool>* cancelled);

}  // namespace vitrine::gates
