// SPDX-License-Identifier: Apache-2.0
#include "vitrine/model_signature.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <string_view>

#include "core/json_text.h"
#include "ec_key.h"
#include "model_files.h"
#include "model_statement.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace {

namespace fs = std::filesystem;
using gates::ModelEntry;

constexpr uint64_t kMaxSignatureBytes = uint64_t{256} << 20;

gates::IgnoredPaths ignored_paths(const std::string& model, const std::string& signature_file,
                                  const ModelSignatureOptions& options) {
  gates::IgnoredPaths ignored;
  for (const std::string& path : options.ignored) {
    if (ignored.add(path)) continue;
    throw Error(ErrorKind::kInvalidArgument, "the ignored path " + quote_text(path) +
                                                 " is no part of " + model +
                                                 "; expected a path relative to it");
  }
  if (options.ignores_git) ignored.add_git();
  ignored.add_within(model, signature_file);
  return ignored;
}

void refuse_problems(const std::string& model, const std::vector<ModelEntry>& entries) {
  for (const ModelEntry& entry : entries) {
    if (entry.problem.empty()) continue;
    throw Error(ErrorKind::kInvalidArgument, model + ": file " + quote_text(entry.name) + " " +
                                                 entry.problem +
                                                 "; expected files, or that it is ignored");
  }
}

std::string hash_entry(const ModelEntry& entry, const ModelSignatureOptions& options) {
  if (options.on_file) options.on_file(entry.path, entry.bytes);
  return gates::hash_of_file(entry, options.cancelled);
}

/// A signature takes only an older one's place.
void check_out(const std::string& model, const std::string& key_file, const std::string& out) {
  std::error_code error;
  for (const std::string& read : {model, key_file}) {
    if (!fs::equivalent(read, out, error) || error) continue;
    throw Error(ErrorKind::kInvalidArgument,
                out + ": would replace " + read + ", which is read; choose another path");
  }
  gates::IgnoredPaths within;
  within.add_within(model, out);
  if (within.paths().empty() || !fs::is_regular_file(out, error)) return;
  if (fs::file_size(out, error) <= kMaxSignatureBytes &&
      gates::is_bundle(read_text_file(out, kMaxSignatureBytes))) {
    return;
  }
  throw Error(ErrorKind::kInvalidArgument,
              out + ": is a file of the model and no signature; choose another path");
}

[[noreturn]] void refuse_model(const std::string& signature_file, const std::string& name,
                               const std::string& found, const std::string& expected) {
  throw Error(ErrorKind::kBadFile, signature_file + ": file " + quote_text(name) + " " + found +
                                       "; expected " + expected);
}

/// A folder is told from a file before their names are compared.
void refuse_other_kind(const std::string& model, const std::string& signature_file,
                       const SignedModel& signed_model, const std::vector<ModelEntry>& entries) {
  const bool is_signed_file = signed_model.files[0].name == gates::kOnlyFile;
  const bool is_file = !entries.empty() && entries[0].name == gates::kOnlyFile;
  if (is_signed_file == is_file) return;
  const auto kind = [](bool is_one) { return is_one ? "a model that is one file" : "a folder"; };
  throw Error(ErrorKind::kBadFile, signature_file + ": 'predicate/resources' is of " +
                                       kind(is_signed_file) + "; expected " + kind(is_file) +
                                       ", as " + model + " is");
}

std::string others(size_t count) {
  return count < 2 ? "" : " (and " + std::to_string(count - 1) + " more)";
}

/// Which names of both there are only in the one.
std::vector<std::string> names_missing(const std::vector<std::string>& from,
                                       const std::vector<std::string>& in) {
  std::vector<std::string> missing;
  std::ranges::set_difference(from, in, std::back_inserter(missing));
  return missing;
}

}  // namespace

SignedModel sign_model(const std::string& model, const std::string& key_file,
                       const std::string& out, const ModelSignatureOptions& options) {
  check_out(model, key_file, out);
  const gates::EcKey key = gates::EcKey::load_private(key_file, options.passphrase);
  const gates::IgnoredPaths ignored = ignored_paths(model, out, options);
  const std::vector<ModelEntry> entries = gates::list_model(model, ignored, options.allows_links);
  refuse_problems(model, entries);
  if (entries.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                model + ": has no files to sign; expected a model's folder, or a .gguf file");
  }
  SignedModel signed_model;
  signed_model.name = gates::model_name(model);
  signed_model.ignored = ignored.paths();
  signed_model.key = key.hint();
  signed_model.curve = key.curve();
  for (const ModelEntry& entry : entries) {
    signed_model.files.push_back({entry.name, hash_entry(entry, options)});
  }
  const std::string statement = gates::model_statement(signed_model, options.allows_links);
  write_file_atomically(out, gates::sign_statement(statement, key));
  return signed_model;
}

SignedModel verify_model(const std::string& model, const std::string& signature_file,
                         const std::string& public_key_file, const ModelSignatureOptions& options) {
  const gates::EcKey key = gates::EcKey::load_public(public_key_file);
  SignedModel signed_model = gates::read_signed_model(
      read_text_file(signature_file, kMaxSignatureBytes), key, signature_file);
  gates::IgnoredPaths ignored = ignored_paths(model, signature_file, options);
  for (const std::string& path : signed_model.ignored) ignored.add(path);
  std::vector<ModelEntry> entries = gates::list_model(model, ignored, options.allows_links);

  refuse_other_kind(model, signature_file, signed_model, entries);

  std::vector<std::string> found_names, signed_names;
  for (const ModelEntry& entry : entries) found_names.push_back(entry.name);
  for (const SignedFile& file : signed_model.files) signed_names.push_back(file.name);
  std::ranges::sort(found_names);
  std::ranges::sort(signed_names);
  if (const auto missing = names_missing(signed_names, found_names); !missing.empty()) {
    refuse_model(signature_file, missing[0], "is not in " + model + others(missing.size()),
                 "all files that were signed");
  }
  signed_model.unsigned_files = names_missing(found_names, signed_names);
  if (!signed_model.unsigned_files.empty() && !options.ignores_unsigned) {
    refuse_model(
        signature_file, signed_model.unsigned_files[0],
        "is in " + model + " and was not signed" + others(signed_model.unsigned_files.size()),
        "signed files alone");
  }
  std::erase_if(entries, [&](const ModelEntry& entry) {
    return !std::ranges::binary_search(signed_names, entry.name);
  });
  refuse_problems(model, entries);
  std::map<std::string_view, const ModelEntry*> found;
  for (const ModelEntry& entry : entries) found[entry.name] = &entry;
  for (const SignedFile& file : signed_model.files) {
    const std::string sha256 = hash_entry(*found.at(file.name), options);
    if (sha256 != file.sha256) {
      refuse_model(signature_file, file.name, "of " + model + " has the SHA-256 " + sha256,
                   file.sha256 + ", which was signed");
    }
  }
  return signed_model;
}

}  // namespace vitrine
