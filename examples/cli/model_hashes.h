// SPDX-License-Identifier: Apache-2.0
// The SHA-256 of the files that make up a model. Those of large files are kept, so that a file is
// read for it once and not in each run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "vitrine/checkpoint.h"

namespace cli {

/// Names of files, each with its SHA-256.
using FileHashes = std::vector<std::pair<std::string, std::string>>;

enum class HashCache {
  kUse,     ///< a hash that was kept counts, if the file has not been touched since
  kRefresh  ///< every file is read
};

/// The names and SHA-256 of the files that make up a model, as logs name them: all weight files,
/// and of a folder the small files beside them. Throws kIo.
FileHashes file_hashes(const vitrine::Checkpoint& checkpoint, HashCache cache = HashCache::kUse);

/// A file's SHA-256. That of a file of 64 MiB or more is kept in $XDG_CACHE_HOME/vitrine/sha256 (or
/// ~/.cache/…), bound to device, inode, size and the times of the last change of content and of
/// anything; where it cannot be kept, that is all. Says in a note when it reads 1 GiB or more.
std::string file_hash(const std::string& path, HashCache cache = HashCache::kUse);

/// How files here differ from those that a log names, in one line, or empty: they are the same, or
/// the log names none.
std::string first_other_file(const FileHashes& logged, const FileHashes& found);

}  // namespace cli
