// SPDX-License-Identifier: Apache-2.0
#include "quantize_evidence.h"

#include <fmt/format.h>

#include <filesystem>

#include "option_section.h"
#include "vitrine/calibration.h"
#include "vitrine/compression_manifest.h"

namespace cli {

namespace {

namespace fs = std::filesystem;

/// Returns what a folder's manifest takes from a calibration: all but the salts, with which whoever
/// guesses a document could tell that it was used.
nlohmann::ordered_json corpus_record(const std::string& path, const std::string& model) {
  nlohmann::ordered_json record = {{"file", fs::path(path).filename().string()},
                                   {"sha256", vitrine::sha256_of_file(path)}};
  const vitrine::CalibrationTexts calibration = vitrine::read_calibration(path);
  auto manifest = nlohmann::ordered_json::parse(calibration.manifest);
  const auto corpus = manifest.find("corpus");
  if (corpus != manifest.end() && corpus->is_object()) corpus->erase("salts");
  record["manifest"] = std::move(manifest);
  record["statistics"] = nullptr;
  if (calibration.statistics) {
    vitrine::require_statistics_of(*calibration.statistics, model, path);
    record["statistics"] =
        nlohmann::ordered_json::parse(vitrine::statistics_json(*calibration.statistics));
  }
  return record;
}

}  // namespace

void require_calendar_day(const std::string& option, const std::string& day) {
  if (day.empty() || vitrine::is_calendar_day(day)) return;
  refuse(fmt::format("{} {}: is no day; expected one as 2027-06-30", option, day));
}

void QuantizeEvidence::add_to(CLI::App& command) {
  const OptionSection section(command, "Evidence");
  command
      .add_option("--seal", key_file_,
                  "sign the folder's files and manifest with this key (made where there is none), "
                  "for `manifest verify`")
      ->check(not_empty());
  command
      .add_option("--expires", expires_,
                  "last day on which the result holds, as 2027-06-30 (default: the calibration's)")
      ->check(not_empty());
}

void QuantizeEvidence::prepare(const std::string& model, const std::string& calibration) {
  require_calendar_day("--expires", expires_);
  if (!calibration.empty()) {
    corpus_ = corpus_record(calibration, model);
    const auto day = corpus_["manifest"].value("expires", nlohmann::ordered_json());
    if (!day.is_null() && !(day.is_string() && vitrine::is_calendar_day(day.get<std::string>()))) {
      refuse(fmt::format("{}: field 'expires' of its manifest is {}; expected a day as 2027-06-30",
                         calibration, day.dump()));
    }
  }
  if (!key_file_.empty()) key_ = vitrine::SealKey::load_or_create(key_file_);
}

nlohmann::ordered_json QuantizeEvidence::facts() const {
  nlohmann::ordered_json facts = {{"expires", nullptr}, {"corpus", corpus_}};
  if (!expires_.empty()) {
    facts["expires"] = expires_;
  } else if (corpus_.is_object()) {
    facts["expires"] = corpus_["manifest"].value("expires", nlohmann::ordered_json());
  }
  return facts;
}

void QuantizeEvidence::seal(const std::string& folder) const {
  if (!key_) return;
  const std::string path = (fs::path(folder) / vitrine::kCompressionSealFile).string();
  vitrine::write_file_atomically(path, vitrine::seal_compression(folder, *key_));
}

}  // namespace cli
