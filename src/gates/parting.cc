// SPDX-License-Identifier: Apache-2.0
#include "vitrine/parting.h"

#include <algorithm>
#include <cstdio>

#include "gates/log_records.h"

namespace vitrine {

using gates::compare_records;
using gates::Difference;
using gates::ItemRun;
using gates::read_run;

namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

std::string_view parting_probe_name(PartingProbe probe) {
  constexpr std::array<std::string_view, 4> kNames = {"residual norm", "routing", "expert output",
                                                      "log-probability"};
  return kNames[static_cast<size_t>(probe)];
}

LogParting find_log_parting(const std::string& baseline_log, const std::string& candidate_log,
                            const DeviationProfile& noise, const std::optional<SealKey>& reader) {
  const ItemRun a = read_run(baseline_log, reader), b = read_run(candidate_log, reader);
  LogParting parting;
  const size_t both = std::min(a.records.size(), b.records.size());
  for (size_t i = 0; i < both; ++i) {
    const TokenRecord &left = a.records[i], &right = b.records[i];
    parting.position = left.position;
    parting.is_prompt = left.position < std::min(a.prompt_tokens, b.prompt_tokens);
    if (left.position != right.position || left.token != right.token) {
      parting.kind = parting.is_prompt ? LogParting::Kind::kInput : LogParting::Kind::kToken;
      parting.baseline_token = left.token;
      parting.candidate_token = right.token;
      return parting;
    }
    compare_records(left, right,
                    [&](int32_t layer, PartingProbe probe, const Difference& difference) {
                      const double level = noise.largest(layer, probe);
                      if (difference.value <= level) return true;
                      parting.kind = LogParting::Kind::kValue;
                      parting.layer = layer;
                      parting.expert = difference.expert;
                      parting.probe = probe;
                      parting.difference = difference.value;
                      parting.noise = level;
                      return false;
                    });
    if (parting.kind == LogParting::Kind::kValue) return parting;
  }
  if (a.records.size() != b.records.size()) {
    parting.kind =
        a.prompt_tokens != b.prompt_tokens ? LogParting::Kind::kInput : LogParting::Kind::kLength;
    parting.position = static_cast<int64_t>(both);
  }
  return parting;
}

std::string parting_text(const LogParting& parting) {
  if (parting.kind == LogParting::Kind::kNowhere) return "nowhere above noise";
  std::string text = "position " + std::to_string(parting.position) +
                     (parting.is_prompt ? " (prompt)" : " (answer)");
  switch (parting.kind) {
    case LogParting::Kind::kNowhere: break;
    case LogParting::Kind::kInput:
      return text + ": the prompts differ (tokenizer or template), token " +
             std::to_string(parting.baseline_token) + " became " +
             std::to_string(parting.candidate_token);
    case LogParting::Kind::kToken:
      return text + ": token " + std::to_string(parting.baseline_token) + " became " +
             std::to_string(parting.candidate_token) + ", with nothing above noise before it";
    case LogParting::Kind::kLength: return text + ": one of the answers ends here";
    case LogParting::Kind::kValue: break;
  }
  if (parting.layer >= 0) text += ", layer " + std::to_string(parting.layer);
  if (parting.expert >= 0) text += ", expert " + std::to_string(parting.expert);
  return text + ": " + std::string(parting_probe_name(parting.probe)) + " differs by " +
         number(parting.difference) + ", noise " + number(parting.noise);
}

}  // namespace vitrine
