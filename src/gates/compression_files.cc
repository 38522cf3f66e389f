// SPDX-License-Identifier: Apache-2.0
#include "compression_files.h"

#include <algorithm>
#include <filesystem>

#include "core/json_text.h"
#include "core/sha256.h"
#include "statement_fields.h"
#include "vitrine/checkpoint.h"
#include "vitrine/compression_manifest.h"

namespace vitrine::gates {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostFolderManifestBytes = uint64_t{256} << 20;
constexpr size_t kMostFolderManifestValues = size_t{1} << 24;
/// Ends of the names of files that programs load with a model, without being asked for: weights,
/// settings (an adapter's too), words, templates and code.
constexpr std::string_view kModelEndings[] = {".safetensors",
                                              ".safetensors.index.json",
                                              ".tensors",
                                              ".gguf",
                                              ".bin",
                                              ".pt",
                                              ".pth",
                                              ".pickle",
                                              ".pkl",
                                              ".ckpt",
                                              ".h5",
                                              ".msgpack",
                                              ".so",
                                              ".py",
                                              ".model",
                                              ".jinja",
                                              "config.json",
                                              "tokenizer.json",
                                              "added_tokens.json",
                                              "chat_template.json",
                                              ".tiktoken",
                                              "vocab.txt",
                                              "tekken.json",
                                              "special_tokens_map.json",
                                              "vocab.json",
                                              "merges.txt"};

/// A name and no path: what stands elsewhere is nobody's here.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

std::vector<ManifestFile> read_files(const StatementFields& fields, const std::string& list) {
  std::vector<ManifestFile> files;
  const size_t count = fields.list(list).size();
  for (size_t i = 0; i < count; ++i) {
    const std::string place = list + "/" + std::to_string(i);
    ManifestFile file;
    file.name = fields.text(place + "/name");
    if (!is_plain_name(file.name)) {
      fields.refuse(place + "/name", quote_text(file.name), "the name of a file, no path");
    }
    const nlohmann::json& bytes = fields.at(place + "/bytes", "a number of bytes");
    if (!bytes.is_number_unsigned()) {
      fields.refuse(place + "/bytes", found_text(bytes), "a number of bytes");
    }
    file.bytes = bytes.get<uint64_t>();
    file.sha256 = fields.text(place + "/sha256");
    if (!is_hex_of_32_bytes(file.sha256)) {
      fields.refuse(place + "/sha256", quote_text(file.sha256), "64 hexadecimal digits");
    }
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

FolderManifest parse_folder_manifest(std::string text, const std::string& path) {
  FolderManifest manifest;
  manifest.path = path;
  manifest.text = std::move(text);
  manifest.json = parse_json_object(manifest.text, path, kMostFolderManifestValues);
  const StatementFields fields(manifest.json, path);
  fields.expect("/schema", "vitrine-manifest");
  const nlohmann::json& version = fields.at("/schema_version", "1");
  if (version != 1) fields.refuse("/schema_version", found_text(version), "1");
  manifest.source = read_files(fields, "/source/files");
  manifest.result = read_files(fields, "/result/files");
  if (manifest.result.empty()) fields.refuse("/result/files", "an empty list", "files");
  return manifest;
}

FolderManifest read_folder_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / kCompressionManifestFile).string();
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error(ErrorKind::kBadFile, folder + ": has no " + std::string(kCompressionManifestFile) +
                                         "; expected a folder that `vitrine quantize` made");
  }
  return parse_folder_manifest(read_text_file(path, kMostFolderManifestBytes), path);
}

std::string state_of_file(const std::string& folder, const ManifestFile& file) {
  const std::string path = (fs::path(folder) / file.name).string();
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "missing";
  if (fs::file_size(path, error) != file.bytes || error) return "changed";
  return sha256_of_file(path) == file.sha256 ? "same" : "changed";
}

std::vector<std::string> unnamed_model_files(const std::string& folder,
                                             const std::vector<std::string>& names) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().lexically_relative(folder).string();
    std::string lower = name;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) {
      return static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    });
    std::error_code ignored;
    // What stands behind a link to a folder is not looked through, so none may be there.
    const bool is_linked_folder =
        entry->is_symlink(ignored) && fs::is_directory(entry->path(), ignored);
    const bool is_model =
        is_linked_folder || std::ranges::any_of(kModelEndings, [&](std::string_view ending) {
          return lower.ends_with(ending);
        });
    if (is_model && std::ranges::count(names, name) == 0) found.push_back(name);
  }
  if (error) throw Error(ErrorKind::kIo, folder + ": cannot be listed: " + error.message());
  std::ranges::sort(found);
  return found;
}

std::string expiry_of(const FolderManifest& manifest) {
  const auto found = manifest.json.find("expires");
  if (found == manifest.json.end() || found->is_null()) return {};
  const StatementFields fields(manifest.json, manifest.path);
  const std::string& day = fields.text("/expires");
  if (!is_calendar_day(day)) {
    fields.refuse("/expires", quote_text(day), "a day as 2027-06-30");
  }
  return day;
}

}  // namespace vitrine::gates
