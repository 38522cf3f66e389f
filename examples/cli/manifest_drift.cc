// SPDX-License-Identifier: Apache-2.0
#include "manifest_drift.h"

#include <fmt/format.h>

#include <algorithm>

#include "audit_log_files.h"
#include "vitrine/calibration_cover.h"

namespace cli {

namespace {

constexpr int kDrifted = 3;  // exit code, as of a gate that refuses

struct DriftArguments {
  std::string calibration, key, decrypt;
  std::vector<std::string> logs;
  double most = 0.02;
  bool json = false;
};

nlohmann::ordered_json drift_json(const DriftArguments& arguments,
                                  const vitrine::AuditRouting& live,
                                  const std::vector<vitrine::LayerDrift>& drift, bool is_expired) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const vitrine::LayerDrift& layer : drift) {
    layers.push_back(
        {{"layer", layer.layer}, {"divergence", layer.divergence}, {"by_chance", layer.by_chance}});
  }
  return {{"calibration", arguments.calibration},
          {"logs", live.logs.size()},
          {"tokens", live.tokens},
          {"most", arguments.most},
          {"expired", is_expired},
          {"layers", layers}};
}

int run_drift(const DriftArguments& arguments) {
  const vitrine::CalibrationStatistics statistics = vitrine::read_statistics(arguments.calibration);
  std::optional<vitrine::PublicKey> key;
  if (!arguments.key.empty()) key = vitrine::load_public_key(arguments.key);
  std::optional<vitrine::SealKey> reader;
  if (!arguments.decrypt.empty()) reader = vitrine::SealKey::load(arguments.decrypt);
  const vitrine::AuditRouting live =
      vitrine::read_audit_routing(audit_log_files("RUNS", arguments.logs), key, reader);
  const std::vector<vitrine::LayerDrift> drift =
      vitrine::routing_drift(statistics.routing, live.routing);
  const auto worst = std::ranges::max_element(drift, {}, &vitrine::LayerDrift::divergence);
  const auto chance = std::ranges::max_element(drift, {}, &vitrine::LayerDrift::by_chance);
  if (chance->by_chance > arguments.most / 2) {
    refuse(fmt::format(
        "{} tokens in {} logs are too few: layer {} would be at {:.4f} bits by "
        "chance, and {:g} are allowed; expected more logs, or a larger --most",
        live.tokens, live.logs.size(), chance->layer, chance->by_chance, arguments.most));
  }
  const bool is_expired = worst->divergence > arguments.most;
  if (arguments.json) {
    write_json(drift_json(arguments, live, drift, is_expired));
  } else {
    std::string text = fmt::format("{:<7}{:>12}{:>12}\n", "layer", "bits", "by chance");
    for (const vitrine::LayerDrift& layer : drift) {
      text += fmt::format("{:<7}{:>12.5f}{:>12.5f}{}\n", layer.layer, layer.divergence,
                          layer.by_chance, layer.divergence > arguments.most ? "  drifted" : "");
    }
    write_out(text + fmt::format("{} tokens in {} logs: at most {:.5f} bits (layer {}), {:g} are "
                                 "allowed\n",
                                 live.tokens, live.logs.size(), worst->divergence, worst->layer,
                                 arguments.most));
  }
  if (!is_expired) return 0;
  write_note(
      fmt::format("{}: calibration expired: layer {} has drifted by {:.4f} bits, {:g} are "
                  "allowed; expected one calibrated anew",
                  arguments.calibration, worst->layer, worst->divergence, arguments.most));
  return kDrifted;
}

}  // namespace

void add_manifest_drift(CLI::App& manifest, Command& command) {
  auto arguments = std::make_shared<DriftArguments>();
  CLI::App* drift = manifest.add_subcommand(
      "drift",
      "Compares how live traffic uses the experts with what a calibration saw; exits with 3 where "
      "the calibration has expired");
  drift
      ->add_option("calibration", arguments->calibration,
                   "a folder that was quantized by a calibration, or a file of `calibrate`")
      ->required()
      ->check(not_empty());
  drift->add_option("runs", arguments->logs, ".vtr logs, and folders of them")
      ->required()
      ->check(not_empty());
  drift->add_option("--key", arguments->key, "public key that must have sealed the logs")
      ->check(not_empty());
  drift
      ->add_option("--decrypt", arguments->decrypt,
                   "secret key that opens encrypted logs; the counters alone will do")
      ->check(not_empty());
  drift
      ->add_option("--most", arguments->most,
                   "Jensen-Shannon divergence of a layer that is allowed, in bits")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  drift->add_flag("--json", arguments->json, "one JSON object");
  drift->callback(
      [arguments, &command] { command = [arguments] { return run_drift(*arguments); }; });
}

}  // namespace cli
