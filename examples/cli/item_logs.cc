// SPDX-License-Identifier: Apache-2.0
#include "item_logs.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "option_section.h"

namespace cli {

namespace {

constexpr size_t kMostPartings = 20;

std::optional<vitrine::SealKey> opening_key(const LogFolders& folders) {
  if (folders.reader.empty()) return std::nullopt;
  return vitrine::SealKey::load(folders.reader);
}

std::string item_log(const std::string& folder, const vitrine::EvaluatedItem& item) {
  return (std::filesystem::path(folder) / item.audit).string();
}

/// Pairs of logs of the same item.
template <typename OnPair>
void for_each_pair(const std::string& folder, const vitrine::Evaluation& baseline,
                   const std::string& other_folder, const vitrine::Evaluation& other,
                   const OnPair& on_pair) {
  for (const vitrine::EvaluatedItem& before : baseline.items) {
    if (before.audit.empty()) continue;
    const vitrine::EvaluatedItem* after = other.find(before.task, before.id);
    if (after == nullptr || after->audit.empty()) continue;
    if (!on_pair(item_log(folder, before), item_log(other_folder, *after), before, *after)) return;
  }
}

}  // namespace

void LogFolders::add_to(CLI::App& command) {
  const OptionSection section(command, "Logs");
  command
      .add_option("--baseline-logs", baseline,
                  "folder that the baseline's `eval --audit` wrote: with a candidate's the first "
                  "position, layer and expert where they part is told")
      ->check(not_empty());
  command
      .add_option("--candidate-logs", candidates,
                  "that of a candidate; given again for the next one")
      ->check(not_empty());
  command
      .add_option("--noise-logs", noise, "that of a noise's results; given again for the next one")
      ->check(not_empty());
  command.add_option("--reader", reader, "secret key that opens encrypted logs")
      ->check(not_empty());
}

vitrine::DeviationProfile measure_noise(const LogFolders& folders,
                                        const vitrine::Evaluation& baseline,
                                        const std::vector<vitrine::Evaluation>& noise) {
  vitrine::DeviationProfile measured;
  if (folders.noise.size() > noise.size()) {
    refuse(
        fmt::format("--noise-logs is given {} times and --noise {} times; expected a folder for "
                    "each result at most",
                    folders.noise.size(), noise.size()));
  }
  if (folders.baseline.empty()) return measured;
  const std::optional<vitrine::SealKey> key = opening_key(folders);
  for (size_t i = 0; i < folders.noise.size(); ++i) {
    for_each_pair(folders.baseline, baseline, folders.noise[i], noise[i],
                  [&](const std::string& a, const std::string& b, const auto&, const auto&) {
                    measured.add(a, b, key);
                    return true;
                  });
  }
  return measured;
}

LogFindings compare_logs(const LogFolders& folders, size_t candidate,
                         const vitrine::Evaluation& baseline, const vitrine::Evaluation& evaluation,
                         const vitrine::EvaluationComparison& comparison,
                         const vitrine::DeviationProfile& noise) {
  LogFindings findings;
  if (folders.baseline.empty() || candidate >= folders.candidates.size()) return findings;
  const std::optional<vitrine::SealKey> key = opening_key(folders);
  std::set<std::pair<std::string, std::string>> flips;
  for (const vitrine::Flip& flip : comparison.flips) flips.emplace(flip.task, flip.id);
  vitrine::DeviationProfile profile;
  std::vector<vitrine::ReportedParting> others;
  for_each_pair(
      folders.baseline, baseline, folders.candidates[candidate], evaluation,
      [&](const std::string& a, const std::string& b, const auto& before, const auto& after) {
        if (before.digest == after.digest) return true;
        profile.add(a, b, key);
        const bool is_flip = flips.contains({before.task, before.id});
        if (!is_flip && others.size() >= kMostPartings) return true;
        (is_flip ? findings.partings : others)
            .push_back({before.task, before.id, vitrine::find_log_parting(a, b, noise, key)});
        return true;
      });
  for (vitrine::ReportedParting& one : others) {
    if (findings.partings.size() < kMostPartings) findings.partings.push_back(std::move(one));
  }
  findings.first = vitrine::first_deviation(profile, noise);
  return findings;
}

}  // namespace cli
