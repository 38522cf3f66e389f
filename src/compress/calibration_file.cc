// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "vitrine/calibration.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "vitrine-calibration";
constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr size_t kMaxKeys = 1 << 16;

class CalibrationReader {
 public:
  explicit CalibrationReader(const std::string& path) : path_(path) {}

  CalibrationTexts read() const {
    const std::string text = read_text_file(path_, kMaxBytes);
    check_json(text, path_, text.size() + 1, kMaxKeys);  // its depth above all
    const Json file = Json::parse(text, nullptr, false);
    if (!file.is_object()) refuse("is no JSON object; expected a calibration of vitrine calibrate");
    if (file.value("schema", Json()) != kSchema) {
      refuse_field("schema", std::string("\"") + kSchema + "\"");
    }
    if (file.value("schema_version", Json()) != 1) refuse_field("schema_version", "1");
    CalibrationTexts calibration;
    const Json digest = file.value("tokenizer_sha256", Json());
    if (!digest.is_string()) refuse_field("tokenizer_sha256", "a string");
    calibration.tokenizer_sha256 = digest.get<std::string>();
    const Json manifest = file.value("manifest", Json());
    if (!manifest.is_object()) refuse_field("manifest", "an object");
    calibration.manifest = manifest.dump();
    const auto texts = file.find("texts");
    if (texts == file.end() || !texts->is_array() || texts->empty()) {
      refuse_field("texts", "lists of token ids");
    }
    for (const Json& text : *texts) calibration.texts.push_back(read_ids(text));
    const auto statistics = file.find("statistics");
    if (statistics != file.end() && !statistics->is_null()) {
      calibration.statistics = parse_statistics(statistics->dump(), path_);
    }
    return calibration;
  }

 private:
  std::vector<int32_t> read_ids(const Json& text) const {
    const char* const expected = "lists of token ids, none of them empty";
    if (!text.is_array() || text.empty()) refuse_field("texts", expected);
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const Json& id : text) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
        refuse_field("texts", expected);
      }
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kBadFile, path_ + " " + what);
  }
  [[noreturn]] void refuse_field(const std::string& field, const std::string& expected) const {
    throw Error(ErrorKind::kBadFile, path_ + ": field '" + field + "'; expected " + expected);
  }

  const std::string& path_;
};

}  // namespace

CalibrationTexts read_calibration(const std::string& path) {
  return CalibrationReader(path).read();
}

void write_calibration(const std::string& path, const CalibrationTexts& calibration) {
  Json manifest = Json::parse(calibration.manifest, nullptr, false);
  if (!manifest.is_object()) {
    throw Error(ErrorKind::kInvalidArgument,
                "the manifest of a calibration is no JSON; expected an object");
  }
  Json file = {{"schema", kSchema},
               {"schema_version", 1},
               {"tokenizer_sha256", calibration.tokenizer_sha256},
               {"manifest", std::move(manifest)},
               {"texts", calibration.texts}};
  if (calibration.statistics) {
    file["statistics"] = Json::parse(statistics_json(*calibration.statistics));
  }
  write_file_atomically(path, file.dump() + "\n");
}

}  // namespace vitrine
