// SPDX-License-Identifier: Apache-2.0
#include "vitrine/compression_manifest.h"

#include <sodium.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "audit/dsse.h"
#include "audit/manifest.h"
#include "compression_files.h"
#include "core/json_text.h"
#include "core/sha256.h"
#include "statement_fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace {

using OrderedJson = nlohmann::ordered_json;
using gates::FolderManifest;
using gates::ManifestFile;
using gates::StatementFields;

/// A type needs a URI that nobody else can mean; the UUID is of this major version.
constexpr char kCompressionPredicateType[] =
    "urn:uuid:3f0c6a1e-57d2-4c0b-9a6e-2d8b41c7f905#vitrine-compression-v1";
constexpr uint64_t kMostSealBytes = uint64_t{512} << 20;
constexpr size_t kMostSealValues = size_t{1} << 24;

std::string path_in(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

[[noreturn]] void refuse_file(const std::string& path, const std::string& found,
                              const std::string& expected) {
  throw Error(ErrorKind::kBadFile, path + ": " + found + "; expected " + expected);
}

void refuse_unnamed(const std::string& folder, const std::vector<std::string>& names) {
  const std::vector<std::string> unnamed = gates::unnamed_model_files(folder, names);
  if (unnamed.empty()) return;
  refuse_file(path_in(folder, unnamed.front()),
              "a file of the model that the manifest does not name",
              "none but those that it names");
}

/// Where a file is not as it was signed, says how.
void check_file(const std::string& folder, const ManifestFile& file) {
  const std::string state = gates::state_of_file(folder, file);
  if (state == "same") return;
  refuse_file(path_in(folder, file.name), state == "missing" ? "is not there" : "was changed",
              "a file with the SHA-256 " + file.sha256);
}

std::vector<std::string> names_of(const std::vector<ManifestFile>& files) {
  std::vector<std::string> names;
  for (const ManifestFile& file : files) names.push_back(file.name);
  return names;
}

PublicKey key_in(const StatementFields& statement) {
  const std::string& text = statement.text("/predicate/publicKey");
  if (!is_hex_of_32_bytes(text)) {
    statement.refuse("/predicate/publicKey", quote_text(text), "64 hexadecimal digits");
  }
  PublicKey key{};
  sodium_hex2bin(key.data(), key.size(), text.data(), text.size(), nullptr, nullptr, nullptr);
  return key;
}

/// The subjects are the manifest's files and the manifest, no more and no less.
void check_subjects(const StatementFields& statement, const FolderManifest& manifest) {
  const size_t count = statement.list("/subject").size();
  const size_t expected = manifest.result.size() + 1;
  if (count != expected) {
    statement.refuse("/subject", "a list of " + std::to_string(count),
                     std::to_string(expected) + ", the manifest's files and itself");
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string place = "/subject/" + std::to_string(i);
    const bool is_last = i + 1 == count;
    statement.expect(place + "/name",
                     is_last ? std::string(kCompressionManifestFile) : manifest.result[i].name);
    statement.expect(place + "/digest/sha256",
                     is_last ? sha256_of_text(manifest.text) : manifest.result[i].sha256);
  }
}

/// The civil day of a time in UTC, as ISO 8601 writes it: texts of days compare as days do.
std::string day_of(int64_t unix_seconds) {
  constexpr uint64_t kNanoseconds = 1'000'000'000;
  return utc_text(static_cast<uint64_t>(std::max<int64_t>(0, unix_seconds)) * kNanoseconds)
      .substr(0, 10);
}

}  // namespace

bool is_calendar_day(std::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  const auto number = [&](size_t begin, size_t count) {
    unsigned value = 0;
    const char* const end = text.data() + begin + count;
    const auto [stop, error] = std::from_chars(text.data() + begin, end, value);
    return error == std::errc() && stop == end ? static_cast<int>(value) : -1;
  };
  const int year = number(0, 4), month = number(5, 2), day = number(8, 2);
  if (year < 0 || month < 0 || day < 0) return false;
  return std::chrono::year_month_day(std::chrono::year(year),
                                     std::chrono::month(static_cast<unsigned>(month)),
                                     std::chrono::day(static_cast<unsigned>(day)))
      .ok();
}

std::string seal_compression(const std::string& folder, const SealKey& key) {
  const FolderManifest manifest = gates::read_folder_manifest(folder);
  gates::expiry_of(manifest);
  OrderedJson subjects = OrderedJson::array();
  for (const ManifestFile& file : manifest.result) {
    check_file(folder, file);
    subjects.push_back({{"name", file.name}, {"digest", {{"sha256", file.sha256}}}});
  }
  refuse_unnamed(folder, names_of(manifest.result));
  subjects.push_back({{"name", kCompressionManifestFile},
                      {"digest", {{"sha256", sha256_of_text(manifest.text)}}}});
  const OrderedJson statement = {{"_type", audit::kStatementType},
                                 {"subject", subjects},
                                 {"predicateType", kCompressionPredicateType},
                                 {"predicate",
                                  {{"schema", "vitrine.compression/1"},
                                   {"publicKey", public_key_text(key.public_key())},
                                   {"engine", {{"build", engine_build()}}}}}};
  std::string payload = statement.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  // The manifest becomes the predicate's last member as a text: a JSON that keeps the order of its
  // names looks through all of them for each one that it takes.
  payload.insert(payload.size() - 2,
                 ",\"manifest\":" +
                     manifest.json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return audit::seal_envelope(audit::kStatementMediaType, payload, key);
}

VerifiedCompression verify_compression(const std::string& folder,
                                       const std::optional<PublicKey>& key, int64_t unix_seconds) {
  const std::string seal = path_in(folder, kCompressionSealFile);
  std::error_code error;
  if (!std::filesystem::exists(seal, error)) {
    throw Error(ErrorKind::kBadFile, folder + ": is not signed: it has no " +
                                         std::string(kCompressionSealFile) +
                                         "; expected one, as `vitrine quantize --seal` writes it");
  }
  const audit::Envelope envelope =
      audit::parse_envelope(read_text_file(seal, kMostSealBytes), seal);
  if (envelope.payload_type != audit::kStatementMediaType) {
    refuse_file(seal, "'payloadType' is " + quote_text(envelope.payload_type),
                audit::kStatementMediaType);
  }
  const nlohmann::json payload = parse_json_object(envelope.payload, seal, kMostSealValues);
  const StatementFields statement(payload, seal, /*root=*/"/");
  statement.expect("/_type", audit::kStatementType);
  statement.expect("/predicateType", kCompressionPredicateType);
  VerifiedCompression verified;
  verified.is_given_key = key.has_value();
  verified.signer = key ? *key : key_in(statement);
  // Nothing in the payload counts before this.
  if (!envelope.is_signed_by(verified.signer)) {
    refuse_file(seal, "'signatures' has none by " + public_key_text(verified.signer),
                "one over the statement as it stands");
  }
  const FolderManifest manifest = gates::read_folder_manifest(folder);
  check_subjects(statement, manifest);
  if (statement.at("/predicate/manifest", "a manifest") != manifest.json) {
    statement.refuse("/predicate/manifest", "another one than " + manifest.path,
                     "the one that was signed");
  }
  for (const ManifestFile& file : manifest.result) check_file(folder, file);
  verified.files = names_of(manifest.result);
  refuse_unnamed(folder, verified.files);
  verified.files.emplace_back(kCompressionManifestFile);
  verified.manifest = manifest.text;
  verified.expires = gates::expiry_of(manifest);
  verified.is_expired = !verified.expires.empty() && day_of(unix_seconds) > verified.expires;
  return verified;
}

}  // namespace vitrine
