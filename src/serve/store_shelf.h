// SPDX-License-Identifier: Apache-2.0
// Which prefixes a folder of files has, and which of its files go where there are too many bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix_image.h"
#include "serve/prefix_file.h"
#include "serve/prefix_tree.h"

namespace vitrine::serve {

/// Knows files by their names, and the records of those whose scope was opened. Not thread-safe.
class StoreShelf {
 public:
  using Time = std::filesystem::file_time_type;

  explicit StoreShelf(const engine::ImageSizes& sizes) : sizes_(sizes) {}

  /// Notes a file of the folder.
  void add_file(const std::string& name, uint64_t bytes, Time used) {
    File& file = files_[name];
    bytes_ += bytes - file.bytes;
    file = {bytes, used};
  }
  /// Notes what a file of a scope says, in place of what it said before.
  void add_record(const PrefixKey& key, const std::string& name, StoredRecord record);
  /// Forgets a file's record; the file still counts.
  void drop_record(const std::string& name);
  void drop_file(const std::string& name);
  void touch(const std::string& name, Time now);

  /// A file that begins as tokens do.
  struct Found {
    std::string name;    ///< empty: there is none
    int64_t length = 0;  ///< of the tokens
  };
  /// Returns the file from which most of the tokens are gone on from at once.
  Found find(const PrefixKey& key, std::span<const int32_t> tokens) const;
  /// Returns the file that has most of the tokens.
  Found covering(const PrefixKey& key, std::span<const int32_t> tokens) const;
  /// Returns what a file says; null where that is not known (any more).
  const StoredRecord* record(const std::string& name) const;

  /// Returns the file that goes next: the one that was used least recently of those that no other
  /// one needs, if that was before `before`; empty: there is none.
  std::string next_to_go(Time before) const;
  /// Bytes of all files, which each step is told.
  uint64_t num_bytes() const { return bytes_; }
  std::vector<std::string> names() const;

 private:
  struct File {
    uint64_t bytes = 0;
    Time used = {};
  };
  struct Known {
    PrefixKey key;
    StoredRecord record;
  };
  int64_t resumed(const StoredRecord& record, int64_t common) const;

  engine::ImageSizes sizes_;
  std::map<std::string, File> files_;
  uint64_t bytes_ = 0;
  std::map<std::string, Known> known_;
};

}  // namespace vitrine::serve
