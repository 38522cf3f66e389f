// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "compression_files.h"
#include "core/json_text.h"
#include "statement_fields.h"
#include "vitrine/compression_manifest.h"

namespace vitrine {

namespace {

using AccountJson = nlohmann::ordered_json;
using gates::FolderManifest;
using gates::ManifestFile;
using gates::StatementFields;

/// Builds an account; what is taken from the manifest is checked where a reader counts on it.
class Accountant {
 public:
  Accountant(const std::string& folder, const std::string& source)
      : folder_(folder),
        source_(source),
        manifest_(gates::read_folder_manifest(folder)),
        fields_(manifest_.json, manifest_.path) {}

  AccountJson account() {
    const nlohmann::json& json = manifest_.json;
    AccountJson account = {{"folder", folder_}, {"method", fields_.text("/scheme/rounding")}};
    account["scheme"] = object_at("scheme");
    for (const char* name : {"tool", "instruction_set", "threads", "seed"}) {
      account[name] = json.value(name, nlohmann::json());
    }
    account["source_name"] = fields_.text("/source/name");
    account["bytes"] = json.value("tensor_bytes", nlohmann::json());
    const std::string expires = gates::expiry_of(manifest_);
    account["expires"] = expires.empty() ? AccountJson(nullptr) : AccountJson(expires);
    account["files"] = files();
    std::vector<std::string> names;
    for (const ManifestFile& file : manifest_.result) names.push_back(file.name);
    account["unnamed"] = gates::unnamed_model_files(folder_, names);
    account["matrices"] = matrices();
    account["left"] = left();
    for (const char* name :
         {"experts", "fallbacks", "calibration", "corpus", "evaluation", "gate", "adapters"}) {
      account[name] = counted(json.value(name, nlohmann::json()), 0);
    }
    std::error_code error;
    account["is_signed"] =
        std::filesystem::exists(std::filesystem::path(folder_) / kCompressionSealFile, error);
    account["missing"] = missing(account);
    return account;
  }

 private:
  const nlohmann::json& object_at(const std::string& name) const {
    const nlohmann::json& value = fields_.at("/" + name, "an object");
    if (!value.is_object()) fields_.refuse("/" + name, found_text(value), "an object");
    return value;
  }

  double number_at(const nlohmann::json& object, const std::string& place, const char* name) const {
    const auto found = object.find(name);
    if (found != object.end() && found->is_number()) return found->get<double>();
    fields_.refuse(place + "/" + name, found == object.end() ? "not there" : found_text(*found),
                   "a number");
  }

  AccountJson files() const {
    AccountJson list = AccountJson::array();
    const auto add = [&](const char* of, const ManifestFile& file, const std::string& folder) {
      list.push_back(
          {{"of", of},
           {"name", file.name},
           {"bytes", file.bytes},
           {"sha256", file.sha256},
           {"state", folder.empty() ? "not checked" : gates::state_of_file(folder, file)}});
    };
    for (const ManifestFile& file : manifest_.result) add("result", file, folder_);
    for (const ManifestFile& file : manifest_.source) add("source", file, source_);
    return list;
  }

  /// Matrices by bits and columns that share a scale.
  AccountJson matrices() const {
    struct Form {
      int64_t matrices = 0, calibrated = 0;
      double worst = 0, loss = 0;
      std::string worst_name;
    };
    std::map<std::pair<double, double>, Form> forms;
    for (const auto& [name, matrix] : object_at("quantized").items()) {
      const std::string place = "/quantized/" + name;
      if (!matrix.is_object()) fields_.refuse(place, found_text(matrix), "an object");
      Form& form =
          forms[{number_at(matrix, place, "bits"), number_at(matrix, place, "group_size")}];
      ++form.matrices;
      const double worst = number_at(matrix, place, "worst_absolute_error");
      if (worst >= form.worst) form.worst = worst, form.worst_name = name;
      const auto calibration = matrix.find("calibration");
      if (calibration == matrix.end() || !calibration->is_object()) continue;
      ++form.calibrated;
      const auto loss = calibration->find("loss");
      if (loss != calibration->end() && loss->is_null())
        continue;  // of a method that measures none
      form.loss += number_at(*calibration, place + "/calibration", "loss");
      if (!std::isfinite(form.loss)) {
        fields_.refuse(place + "/calibration/loss", found_text(*loss), "a finite sum with others");
      }
    }
    AccountJson list = AccountJson::array();
    for (const auto& [key, form] : forms) {
      list.push_back({{"bits", key.first},
                      {"group_size", key.second},
                      {"matrices", form.matrices},
                      {"calibrated", form.calibrated},
                      {"loss", form.loss},
                      {"worst_absolute_error", form.worst},
                      {"worst", form.worst_name}});
    }
    return list;
  }

  /// Tensors that stayed, by reason.
  AccountJson left() const {
    std::map<std::string, int64_t> reasons;
    for (const auto& [name, reason] : object_at("unquantized").items()) {
      if (!reason.is_string()) {
        fields_.refuse("/unquantized/" + name, found_text(reason), "a text");
      }
      ++reasons[reason.get<std::string>()];
    }
    return reasons;
  }

  /// Makes a copy in which long lists and objects are their lengths.
  static AccountJson counted(const nlohmann::json& value, int depth) {
    constexpr size_t kMostListed = 32;
    constexpr int kMostLevels = 5;
    const bool is_nested = value.is_object() || value.is_array();
    if (is_nested && (value.size() > kMostListed || depth >= kMostLevels)) {
      return AccountJson(value.size());
    }
    if (value.is_array()) {
      AccountJson list = AccountJson::array();
      for (const nlohmann::json& one : value) list.push_back(counted(one, depth + 1));
      return list;
    }
    if (!value.is_object()) return value;
    AccountJson object = AccountJson::object();
    for (const auto& [name, one] : value.items()) object[name] = counted(one, depth + 1);
    return object;
  }

  static AccountJson missing(const AccountJson& account) {
    AccountJson list = AccountJson::array();
    const auto require = [&](const char* name, const char* what) {
      if (account[name].is_null()) list.push_back(what);
    };
    const bool is_calibrated = account["method"] != "rtn";
    if (is_calibrated) require("calibration", "calibration");
    if (is_calibrated) require("corpus", "corpus");
    require("evaluation", "evaluation");
    require("gate", "gate");
    require("expires", "expiry");
    require("threads", "threads");
    if (account["instruction_set"] == "") list.push_back("instruction set");
    if (account["is_signed"] == false) list.push_back("signature");
    return list;
  }

  const std::string folder_, source_;
  const FolderManifest manifest_;
  const StatementFields fields_;
};

}  // namespace

std::string compression_account(const std::string& folder, const std::string& source) {
  return Accountant(folder, source)
      .account()
      .dump(-1, ' ', false, AccountJson::error_handler_t::replace);
}

}  // namespace vitrine
