// SPDX-License-Identifier: Apache-2.0
#include "expert_record.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "gptq.h"

namespace vitrine::compress {
namespace {

using Json = nlohmann::ordered_json;

/// What became of an expert; of its matrices the one that was treated worst counts.
enum class Fate : uint8_t { kCalibrated, kShrunk, kRounded, kUntouched };
constexpr const char* kFates[] = {"calibrated", "shrunk", "rounded", "untouched"};

struct Expert {
  Fate fate = Fate::kCalibrated;
  int64_t tokens = 0;
};

/// "model.layers.3.mlp.experts.7.down_proj" as "model.layers.3.mlp" and 7.
struct ExpertName {
  std::string block;
  int64_t number = 0;
};

std::optional<ExpertName> expert_name(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  if (at == name.npos) return std::nullopt;
  ExpertName found;
  found.block = name.substr(0, at);
  const char* const begin = name.data() + at + kExperts.size();
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, found.number);
  if (error != std::errc() || stop == end || *stop != '.') return std::nullopt;
  return found;
}

Fate fate_of(const QuantizedTensorReport& matrix) {
  if (matrix.calibration_rows == 0) return Fate::kRounded;
  return matrix.shrinkage > 0 ? Fate::kShrunk : Fate::kCalibrated;
}

}  // namespace

Json experts_record(const QuantizeReport& report) {
  std::map<std::string, std::map<int64_t, Expert>> blocks;
  const auto add = [&](const std::string& name, Fate fate, int64_t rows) {
    const std::optional<ExpertName> found = expert_name(name);
    if (!found) return;
    Expert& expert = blocks[found->block][found->number];
    expert.fate = std::max(expert.fate, fate);
    expert.tokens = std::max(expert.tokens, rows);
  };
  for (const QuantizedTensorReport& matrix : report.quantized) {
    add(matrix.name, fate_of(matrix), matrix.calibration_rows);
  }
  for (const UnquantizedTensorReport& tensor : report.unquantized) {
    if (tensor.name.ends_with(".weight")) add(tensor.name, Fate::kUntouched, 0);
  }
  if (blocks.empty()) return nullptr;
  int64_t counts[std::size(kFates)] = {};
  Json tokens = Json::object();
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const auto& [block, experts] : blocks) {
    Json& list = tokens[block] = Json::array();
    for (const auto& [number, expert] : experts) {
      ++counts[static_cast<size_t>(expert.fate)];
      list.push_back(expert.tokens);
      fewest = std::min(fewest, expert.tokens);
    }
  }
  Json record = Json::object();
  for (size_t i = 0; i < std::size(kFates); ++i) record[kFates[i]] = counts[i];
  record["fewest_tokens"] = fewest;
  record["tokens"] = std::move(tokens);
  return record;
}

Json fallbacks_record(const QuantizeReport& report, const std::string& method) {
  Json record = {{"rounded", Json::array()}, {"damped", Json::object()}, {"left", Json::array()}};
  for (const QuantizedTensorReport& matrix : report.quantized) {
    if (method != "rtn" && matrix.calibration_rows == 0) record["rounded"].push_back(matrix.name);
    if (matrix.damping > GptqOptions{}.damping) record["damped"][matrix.name] = matrix.damping;
  }
  for (const UnquantizedTensorReport& tensor : report.unquantized) {
    if (tensor.reason.starts_with("the group")) record["left"].push_back(tensor.name);
  }
  return record;
}

}  // namespace vitrine::compress
