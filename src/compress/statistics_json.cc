// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "vitrine/calibration.h"
#include "vitrine/calibration_statistics.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using StatisticsJson = nlohmann::ordered_json;

constexpr size_t kMostStatisticsValues = size_t{1} << 24;
constexpr int64_t kMostLayers = 1 << 16, kMostExperts = 1 << 16, kMostChannels = 1 << 24;
constexpr int64_t kMostTokens = int64_t{1} << 48;
constexpr uint64_t kMostManifestBytes = uint64_t{256} << 20;

/// Reads an object field by field; messages name the field and what it is in.
class StatisticsObject {
 public:
  StatisticsObject(const nlohmann::json& json, std::string place, const std::string& file)
      : json_(json), place_(std::move(place)), file_(file) {
    if (!json_.is_object()) refuse("", found_text(json_), "an object");
  }

  int64_t count(const char* name, int64_t most) const { return count_of(at(name), name, most); }
  double number(const char* name) const { return number_of(at(name), name); }
  std::string text(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_string()) refuse(name, found_text(value), "a text");
    return value.get<std::string>();
  }
  std::vector<int64_t> counts(const char* name, int64_t most) const {
    std::vector<int64_t> values;
    for (const nlohmann::json& one : list(name, kMostExperts)) {
      values.push_back(count_of(one, name, most));
    }
    return values;
  }
  std::vector<double> numbers(const char* name) const {
    std::vector<double> values;
    for (const nlohmann::json& one : list(name, kMostExperts)) {
      values.push_back(number_of(one, name));
    }
    return values;
  }
  std::vector<StatisticsObject> objects(const char* name, int64_t most) const {
    std::vector<StatisticsObject> all;
    const nlohmann::json& values = list(name, most);
    for (size_t i = 0; i < values.size(); ++i) {
      all.emplace_back(values[i], place_ + "/" + name + "/" + std::to_string(i), file_);
    }
    return all;
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& found,
                           const std::string& expected) const {
    throw Error(ErrorKind::kBadFile, file_ + ": '" + place_ + (name.empty() ? "" : "/") + name +
                                         "' is " + found + "; expected " + expected);
  }

 private:
  const nlohmann::json& at(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) refuse(name, "not there", "a value");
    return *found;
  }
  const nlohmann::json& list(const char* name, int64_t most) const {
    const nlohmann::json& value = at(name);
    if (!value.is_array() || std::ssize(value) > most) {
      refuse(name,
             value.is_array() ? "a list of " + std::to_string(value.size()) : found_text(value),
             "a list of at most " + std::to_string(most));
    }
    return value;
  }
  int64_t count_of(const nlohmann::json& value, const char* name, int64_t most) const {
    if (value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(most)) {
      return value.get<int64_t>();
    }
    refuse(name, found_text(value), "a whole number of 0 to " + std::to_string(most));
  }
  double number_of(const nlohmann::json& value, const char* name) const {
    if (value.is_number() && value.get<double>() >= 0) return value.get<double>();
    refuse(name, found_text(value), "a number of 0 or more");
  }

  const nlohmann::json& json_;
  std::string place_;
  const std::string& file_;
};

LayerRouting read_routing(const StatisticsObject& object, int64_t tokens) {
  LayerRouting routing;
  routing.layer = static_cast<int>(object.count("layer", kMostLayers));
  routing.tokens = object.counts("tokens", tokens);
  routing.gate_mass = object.numbers("gate_mass");
  if (routing.tokens.empty()) object.refuse("tokens", "an empty list", "a count for each expert");
  if (!routing.gate_mass.empty() && routing.gate_mass.size() != routing.tokens.size()) {
    object.refuse("gate_mass", "a list of " + std::to_string(routing.gate_mass.size()),
                  "none, or " + std::to_string(routing.tokens.size()) + ", as there are experts");
  }
  return routing;
}

ChannelStatistics read_channels(const StatisticsObject& object) {
  ChannelStatistics channels;
  channels.layer = static_cast<int>(object.count("layer", kMostLayers));
  channels.reader = object.text("reader");
  channels.width = object.count("width", kMostChannels);
  channels.mean = object.number("mean");
  channels.median = object.number("median");
  channels.largest = object.number("largest");
  channels.outliers = object.count("outliers", channels.width);
  for (const StatisticsObject& one : object.objects("worst", channels.outliers)) {
    channels.worst.push_back(
        {one.count("channel", std::max<int64_t>(0, channels.width - 1)), one.number("largest")});
  }
  return channels;
}

}  // namespace

std::string statistics_json(const CalibrationStatistics& statistics) {
  for (const ChannelStatistics& norm : statistics.channels) {
    if (std::isfinite(norm.mean) && std::isfinite(norm.largest) && std::isfinite(norm.median)) {
      continue;
    }
    throw Error(ErrorKind::kBadFile,
                "layer " + std::to_string(norm.layer) +
                    " makes of the texts what is infinite or no "
                    "number; expected a model that computes, or no statistics");
  }
  StatisticsJson json = {{"tokens", statistics.tokens},
                         {"starved_below", statistics.starved_below},
                         {"outlier_ratio", statistics.outlier_ratio},
                         {"routing", StatisticsJson::array()},
                         {"channels", StatisticsJson::array()}};
  for (const LayerRouting& layer : statistics.routing) {
    json["routing"].push_back(
        {{"layer", layer.layer}, {"tokens", layer.tokens}, {"gate_mass", layer.gate_mass}});
  }
  for (const ChannelStatistics& norm : statistics.channels) {
    StatisticsJson worst = StatisticsJson::array();
    for (const OutlierChannel& one : norm.worst) {
      worst.push_back({{"channel", one.channel}, {"largest", one.largest}});
    }
    json["channels"].push_back({{"layer", norm.layer},
                                {"reader", norm.reader},
                                {"width", norm.width},
                                {"mean", norm.mean},
                                {"median", norm.median},
                                {"largest", norm.largest},
                                {"outliers", norm.outliers},
                                {"worst", worst}});
  }
  return json.dump();
}

CalibrationStatistics parse_statistics(std::string_view json, const std::string& file) {
  const nlohmann::json parsed = parse_json_object(json, file, kMostStatisticsValues);
  const StatisticsObject object(parsed, "statistics", file);
  CalibrationStatistics statistics;
  statistics.tokens = object.count("tokens", kMostTokens);
  statistics.starved_below = object.count("starved_below", kMostTokens);
  statistics.outlier_ratio = object.number("outlier_ratio");
  for (const StatisticsObject& layer : object.objects("routing", kMostLayers)) {
    LayerRouting routing = read_routing(layer, statistics.tokens);
    if (!statistics.routing.empty() && routing.layer <= statistics.routing.back().layer) {
      layer.refuse("layer", std::to_string(routing.layer),
                   "one above " + std::to_string(statistics.routing.back().layer));
    }
    statistics.routing.push_back(std::move(routing));
  }
  for (const StatisticsObject& norm : object.objects("channels", 4 * kMostLayers)) {
    statistics.channels.push_back(read_channels(norm));
  }
  return statistics;
}

CalibrationStatistics read_statistics(const std::string& path) {
  const auto refuse = [&](const std::string& file) {
    throw Error(ErrorKind::kBadFile,
                file + ": has no statistics; expected those of `vitrine calibrate`");
  };
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    const CalibrationTexts calibration = read_calibration(path);
    if (!calibration.statistics) refuse(path);
    return *calibration.statistics;
  }
  const std::string file = (std::filesystem::path(path) / "vitrine_manifest.json").string();
  const nlohmann::json manifest =
      parse_json_object(read_text_file(file, kMostManifestBytes), file, kMostStatisticsValues);
  const nlohmann::json::json_pointer place("/corpus/statistics");
  if (!manifest.contains(place) || manifest[place].is_null()) refuse(file);
  return parse_statistics(manifest[place].dump(), file);
}

}  // namespace vitrine
