// SPDX-License-Identifier: Apache-2.0
#include "calibrate_experts.h"

#include <fmt/format.h>

#include <map>

#include "audit_log_files.h"
#include "option_section.h"
#include "vitrine/calibration_cover.h"

namespace cli {

namespace {

constexpr int64_t kMostPoolTokens = int64_t{1} << 32;
constexpr size_t kMostListed = 6;

void stop_early(int64_t, int64_t) {
  stop_if_interrupted("calibrate: cancelled before the end; nothing was written");
}

/// "layer 3: 5 (12), 7 (0); layer 4: …" with the tokens that each has.
std::string starved_text(const std::vector<vitrine::StarvedExpert>& starved) {
  std::map<int, std::string> layers;
  std::map<int, size_t> counts;
  for (const vitrine::StarvedExpert& one : starved) {
    std::string& text = layers[one.layer];
    if (++counts[one.layer] <= kMostListed) {
      text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", one.expert, one.tokens);
    }
  }
  std::string text;
  for (const auto& [layer, experts] : layers) {
    const size_t more = counts[layer] > kMostListed ? counts[layer] - kMostListed : 0;
    text += fmt::format("  layer {}: {}{}\n", layer, experts,
                        more > 0 ? fmt::format(" and {} more", more) : "");
  }
  return text;
}

std::string channels_text(const vitrine::CalibrationStatistics& statistics) {
  std::string text;
  size_t norms = 0;
  for (const vitrine::ChannelStatistics& norm : statistics.channels) {
    if (norm.outliers == 0) continue;
    ++norms;
    std::string worst;
    for (size_t i = 0; i < std::min(norm.worst.size(), kMostListed); ++i) {
      worst += fmt::format("{}{} ({:.3g})", i == 0 ? "" : ", ", norm.worst[i].channel,
                           norm.worst[i].largest);
    }
    text += fmt::format("  layer {}, {}: {} of {}, mean {:.3g}, largest: {}\n", norm.layer,
                        norm.reader, norm.outliers, norm.width, norm.mean, worst);
  }
  return fmt::format("channels above {:g} times the median: in {} of {} norms\n",
                     statistics.outlier_ratio, norms, statistics.channels.size()) +
         text;
}

std::string choice_text(const nlohmann::ordered_json& choice) {
  if (!choice.is_object() || !choice.contains("starved")) return "";
  std::string text = fmt::format(
      "cover: from {} tokens in {} windows: {} of {} experts starve, in turn {} would\n",
      choice["pool_tokens"].get<int64_t>(), choice["pool_windows"].get<int64_t>(),
      choice["starved"].get<int64_t>(), choice["experts"].get<int64_t>(),
      choice["starved_in_turn"].get<int64_t>());
  const auto& live = choice["live"];
  if (live.is_object()) {
    text += fmt::format(
        "live routing: {} tokens in {} logs; starved experts have {:.2f} % of it, in turn {:.2f} "
        "%\n",
        live["tokens"].get<int64_t>(), live["logs"].size(),
        100 * live["starved_share"].get<double>(),
        100 * live["starved_share_in_turn"].get<double>());
  }
  return text;
}

}  // namespace

void CalibrateExperts::add_to(CLI::App& command) {
  const OptionSection section(command, "Experts");
  CLI::Option* cover = command.add_flag(
      "--cover", has_cover_,
      "choose windows by what the model's experts lack, from a pool that goes through it first");
  command.add_option("--pool", pool_, "tokens to choose from (default: four times --tokens)")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(int64_t{1}, kMostPoolTokens))
      ->needs(cover);
  CLI::Option* audits =
      command
          .add_option("--from-audit", audits_,
                      ".vtr logs, and folders of them: experts count by how often they were used "
                      "there; nothing else of the logs is read")
          ->check(not_empty())
          ->needs(cover);
  command.add_option("--audit-key", key_, "public key that must have sealed these logs")
      ->check(not_empty())
      ->needs(audits);
  command
      .add_option("--audit-decrypt", decrypt_,
                  "secret key that opens encrypted logs; the counters alone will do")
      ->check(not_empty())
      ->needs(audits);
  command
      .add_option("--starved-below", starved_below_,
                  "tokens below which an expert starves (default: the columns of its matrices)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      .add_option("--outlier-ratio", outlier_ratio_,
                  "a channel stands out above so many times the median of its norm's")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  add_lenient_weights(command, is_lenient_);
  command.add_flag("--no-statistics", has_no_statistics_,
                   "do not run the model over the texts: no counts of experts, no channels");
}

void CalibrateExperts::check() const {
  if (!has_no_statistics_ || !has_cover_) return;
  refuse("--cover runs the model, and --no-statistics does not; expected one of both");
}

void CalibrateExperts::prepare(const std::string& model,
                               vitrine::CalibrationRequest& request) const {
  if (!has_cover_) return;
  vitrine::CoverOptions options;
  options.tokens = request.tokens;
  options.starved_below = starved_below_;
  options.progress = stop_early;
  options.lenient_weights = is_lenient_;
  if (!audits_.empty()) {
    std::optional<vitrine::PublicKey> key;
    if (!key_.empty()) key = vitrine::load_public_key(key_);
    std::optional<vitrine::SealKey> reader;
    if (!decrypt_.empty()) reader = vitrine::SealKey::load(decrypt_);
    options.live =
        vitrine::read_audit_routing(audit_log_files("--from-audit", audits_), key, reader);
  }
  request.pool = pool_;
  request.choose = [&model, options](const std::vector<std::vector<int32_t>>& windows) {
    return vitrine::cover_windows(model, windows, options);
  };
}

void CalibrateExperts::measure(const std::string& model,
                               vitrine::CalibrationTexts& calibration) const {
  if (has_no_statistics_) return;
  vitrine::StatisticsOptions options;
  options.starved_below = starved_below_;
  options.outlier_ratio = outlier_ratio_;
  options.lenient_weights = is_lenient_;
  options.progress = stop_early;
  calibration.statistics = vitrine::measure_statistics(model, calibration.texts, options);
}

std::string describe_experts(const vitrine::CalibrationTexts& calibration) {
  const auto manifest = nlohmann::ordered_json::parse(calibration.manifest);
  std::string text = choice_text(manifest.value("choice", nlohmann::ordered_json()));
  if (!calibration.statistics) return text;
  const vitrine::CalibrationStatistics& statistics = *calibration.statistics;
  size_t experts = 0;
  for (const vitrine::LayerRouting& layer : statistics.routing) experts += layer.tokens.size();
  if (experts > 0) {
    const std::vector<vitrine::StarvedExpert> starved = vitrine::starved_experts(statistics);
    text += fmt::format("experts with fewer than {} tokens: {} of {}\n", statistics.starved_below,
                        starved.size(), experts);
    text += starved_text(starved);
  }
  return text + channels_text(statistics);
}

}  // namespace cli
