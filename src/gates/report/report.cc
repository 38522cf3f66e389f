// SPDX-License-Identifier: Apache-2.0
#include "vitrine/report.h"

#include <nlohmann/json.hpp>

#include "gates/report/page.h"

namespace vitrine {

namespace {

using Json = nlohmann::ordered_json;

Json parting_json(const ReportedParting& reported) {
  const LogParting& parting = reported.parting;
  constexpr const char* kKinds[] = {"nowhere", "input", "value", "token", "length"};
  return {{"task", reported.task},
          {"id", reported.id},
          {"kind", kKinds[static_cast<size_t>(parting.kind)]},
          {"position", parting.position},
          {"is_prompt", parting.is_prompt},
          {"layer", parting.layer},
          {"expert", parting.expert},
          {"probe", parting_probe_name(parting.probe)},
          {"difference", parting.difference},
          {"noise", parting.noise},
          {"text", parting_text(parting)}};
}

Json evaluation_json(const Evaluation& evaluation) {
  return {{"path", evaluation.path},
          {"sha256", evaluation.sha256},
          {"seconds", evaluation.seconds},
          {"items", evaluation.items.size()},
          {"target", Json::parse(evaluation.target_json)}};
}

Json candidate_json(const ReportedCandidate& candidate) {
  Json partings = Json::array();
  for (const ReportedParting& one : candidate.partings) partings.push_back(parting_json(one));
  return {{"evaluation", evaluation_json(*candidate.evaluation)},
          {"comparison", Json::parse(comparison_json(*candidate.comparison))},
          {"verdict", candidate.verdict == nullptr ? Json(nullptr)
                                                   : Json::parse(verdict_json(*candidate.verdict))},
          {"first", candidate.first ? Json(deviation_text(*candidate.first)) : Json(nullptr)},
          {"partings", std::move(partings)},
          {"has_noise", candidate.has_noise}};
}

/// JSON within a script element: no text of it may end that element.
std::string script_text(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string report_page(const Evaluation& baseline, std::span<const ReportedCandidate> candidates) {
  if (candidates.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "a report has no candidate; expected one at least");
  }
  Json json = {{"suite",
                {{"name", baseline.suite},
                 {"version", baseline.suite_version},
                 {"sha256", baseline.suite_digest}}},
               {"baseline", evaluation_json(baseline)},
               {"candidates", Json::array()}};
  for (const ReportedCandidate& one : candidates) {
    json["candidates"].push_back(candidate_json(one));
  }
  std::string page(gates::kReportPage);
  constexpr std::string_view kPlace = "@REPORT@";
  page.replace(page.find(kPlace), kPlace.size(), script_text(json));
  return page;
}

}  // namespace vitrine
