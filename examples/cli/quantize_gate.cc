// SPDX-License-Identifier: Apache-2.0
#include "quantize_gate.h"

#include <fmt/format.h>

#include <filesystem>

#include "eval_target.h"
#include "option_section.h"

namespace cli {

void QuantizeGate::add_to(CLI::App& command) {
  const OptionSection section(command, "Gate");
  CLI::Option* gate =
      command
          .add_option(
              "--gate", gate_,
              "hold the result to a gate (a .toml file, default, production, rounding or exact): "
              "where that refuses it, nothing is written")
          ->check(not_empty());
  command
      .add_option("--gate-baseline", baseline_path_,
                  "what `eval` wrote of MODEL with the same suite (default: made now, as "
                  "OUT.baseline.eval)")
      ->check(not_empty())
      ->needs(gate);
  command.add_option("--gate-suite", suite_, "a built-in suite, or a suite's .toml file")
      ->check(not_empty())
      ->needs(gate)
      ->capture_default_str();
}

vitrine::Evaluation QuantizeGate::evaluate(const std::string& model, const std::string& path,
                                           bool overwrite) const {
  const vitrine::Suite suite = vitrine::Suite::open(suite_);
  EvalTargetOptions options;
  options.model = model;
  const std::unique_ptr<vitrine::EvaluationTarget> target = open_eval_target(options);
  vitrine::EvaluationOptions run;
  run.overwrite = overwrite;
  run.on_progress = [](const vitrine::EvaluationProgress&) { return interrupt_signal() == 0; };
  if (!vitrine::evaluate(suite, *target, path, run)) {
    throw Interrupted("quantize: cancelled before the end; nothing was written");
  }
  return vitrine::read_evaluation(path);
}

void QuantizeGate::prepare(const std::string& source, const std::string& out) {
  const std::filesystem::path folder = std::filesystem::path(out).lexically_normal();
  out_ = (folder.has_filename() ? folder : folder.parent_path()).string();
  file_ = vitrine::GateFile::open(gate_);
  if (baseline_path_.empty()) {
    baseline_ = evaluate(source, out_ + ".baseline.eval", /*overwrite=*/false);
  } else {
    baseline_ = vitrine::read_evaluation(baseline_path_);
  }
}

void QuantizeGate::check(const std::string& folder) {
  const std::string path = out_ + ".eval";
  const vitrine::Evaluation candidate = evaluate(folder, path, /*overwrite=*/true);
  verdict_ = vitrine::run_gate(*file_, *baseline_, candidate);
  write_out(verdict_->text());
  if (verdict_->outcome != vitrine::GateOutcome::kRefused) return;
  throw GateRefused(
      fmt::format("{}: gate '{}' refused it, and nothing was written; its results are in {}", out_,
                  verdict_->gate, path));
}

nlohmann::ordered_json QuantizeGate::record() const {
  if (!verdict_) return nullptr;
  return {{"verdict", nlohmann::ordered_json::parse(vitrine::verdict_json(*verdict_))}};
}

}  // namespace cli
