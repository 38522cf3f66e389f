// SPDX-License-Identifier: Apache-2.0
// Private to the room: the manifest of a quantized folder, and its files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vitrine::gates {

/// A file as a manifest has it.
struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
};

/// A folder's manifest, read within bounds and not yet believed.
struct FolderManifest {
  std::string path;  // of its file
  std::string text;
  nlohmann::json json;
  std::vector<ManifestFile> source, result;
};

/// Throws kIo, and kBadFile for what is no manifest of a quantized folder and for names of files
/// that are paths.
FolderManifest read_folder_manifest(const std::string& folder);
/// Does the same with a text; `path` names it in messages.
FolderManifest parse_folder_manifest(std::string text, const std::string& path);

/// Returns "same", "changed" or "missing".
std::string state_of_file(const std::string& folder, const ManifestFile& file);

/// Returns the files that a program may load with a model (weights, settings, words, templates,
/// code) that stand in a folder, or below it, and are not among `names`; in order.
std::vector<std::string> unnamed_model_files(const std::string& folder,
                                             const std::vector<std::string>& names);

/// Returns the day on which a manifest expires, or an empty text. Throws kBadFile.
std::string expiry_of(const FolderManifest& manifest);

}  // namespace vitrine::gates
