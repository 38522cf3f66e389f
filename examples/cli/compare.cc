// SPDX-License-Identifier: Apache-2.0
// vitrine compare and vitrine gate: what `eval` wrote of two models, item by item, and a gate's
// word on it.
#include <fmt/format.h>

#include <filesystem>

#include "common.h"
#include "item_logs.h"
#include "vitrine/gates.h"
#include "vitrine/report.h"
#include "vitrine/verdict_manifest.h"

namespace cli {

namespace {

struct CompareArguments {
  std::string baseline, gate = "default", html, seal, manifest;
  std::vector<std::string> candidates, noise;
  LogFolders logs;
  bool json = false;
};

/// A candidate with all that is told of it.
struct Compared {
  vitrine::Evaluation evaluation;
  vitrine::EvaluationComparison comparison;
  std::optional<vitrine::Verdict> verdict;
  LogFindings logs;
};

/// Refuses an output that is one of the inputs.
void require_other_files(const CompareArguments& arguments) {
  for (const std::string& out : {arguments.html, arguments.manifest}) {
    if (out.empty()) continue;
    require_output_folder("the output", out);
    std::vector<std::string> inputs = arguments.candidates;
    inputs.push_back(arguments.baseline);
    inputs.insert(inputs.end(), arguments.noise.begin(), arguments.noise.end());
    for (const std::string& input : inputs) {
      std::error_code error;
      if (out == input || std::filesystem::equivalent(out, input, error)) {
        refuse(out + ": is an input, too; expected another file");
      }
    }
  }
}

std::vector<vitrine::Evaluation> read_all(const std::vector<std::string>& paths) {
  std::vector<vitrine::Evaluation> read;
  for (const std::string& path : paths) read.push_back(vitrine::read_evaluation(path));
  return read;
}

void note_incomplete(const vitrine::Evaluation& evaluation) {
  if (evaluation.is_complete) return;
  write_note(evaluation.path +
             ": not every item has its result yet; the command that made it goes on there");
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string task_line(const vitrine::ComparedTask& task) {
  const auto items = static_cast<double>(task.num_items);
  if (task.kind == vitrine::TaskKind::kText) {
    const std::string kl =
        task.text ? fmt::format("KL {:.3g}, 99.9th percentile {:.3g} nats; same best {}",
                                task.text->kl.mean, task.text->kl_high,
                                percent(task.text->agreement.mean))
                  : "not compared";
    return fmt::format("{:<24} {:>5}  {}\n", task.name, task.num_items, kl);
  }
  const vitrine::PairedAnswers& answers = task.answers;
  return fmt::format("{:<24} {:>5} {:>9} {:>9} {:>5} {:>6} {:>19} {:>5}  {}\n", task.name,
                     task.num_items,
                     percent(static_cast<double>(answers.both + answers.first_only) / items),
                     percent(static_cast<double>(answers.both + answers.second_only) / items),
                     answers.first_only, answers.second_only,
                     fmt::format("{} to {}", percent(task.drop.lower), percent(task.drop.upper)),
                     task.equal_digests, task.not_counted);
}

void show_flips(const Compared& compared) {
  const vitrine::EvaluationComparison& comparison = compared.comparison;
  for (const vitrine::Flip& flip : comparison.flips) {
    std::string where = flip.parting.input_differs ? "the input differs" : "a choice";
    if (!flip.parting.input_differs && flip.parting.index >= 0) {
      where = fmt::format("token {} of the answer", flip.parting.index);
    }
    for (const vitrine::ReportedParting& one : compared.logs.partings) {
      if (one.task == flip.task && one.id == flip.id) where = parting_text(one.parting);
    }
    write_out(fmt::format("{} {}/{}{}: {}\n", flip.is_lost ? "lost  " : "gained", flip.task,
                          flip.id, flip.is_critical ? " (critical)" : "", where));
  }
}

void show_first(const Compared& compared) {
  if (compared.logs.first) write_out("parted: " + deviation_text(*compared.logs.first) + "\n");
}

void show(const vitrine::Evaluation& baseline, const Compared& compared) {
  const vitrine::EvaluationComparison& comparison = compared.comparison;
  write_out(fmt::format("{} beside {}: {} items, {} counted, {} the same to the last bit\n\n",
                        compared.evaluation.path, baseline.path, comparison.num_items,
                        comparison.counted_items, comparison.equal_digests));
  write_out(fmt::format("{:<24} {:>5} {:>9} {:>9} {:>5} {:>6} {:>19} {:>5}\n", "task", "items",
                        "baseline", "candidate", "lost", "gained", "drop, 95 % bounds", "same"));
  for (const vitrine::ComparedTask& task : comparison.tasks) write_out(task_line(task));
  write_out("\n");
  show_first(compared);
  show_flips(compared);
  for (const std::string& note : comparison.notes) write_note(note);
}

Compared compare(const CompareArguments& arguments, const vitrine::Evaluation& baseline,
                 const std::string& path, const vitrine::DeviationProfile& noise, size_t at) {
  Compared compared;
  compared.evaluation = vitrine::read_evaluation(path);
  note_incomplete(compared.evaluation);
  compared.comparison = vitrine::compare_evaluations(baseline, compared.evaluation);
  compared.logs =
      compare_logs(arguments.logs, at, baseline, compared.evaluation, compared.comparison, noise);
  return compared;
}

void write_report(const CompareArguments& arguments, const vitrine::Evaluation& baseline,
                  const std::vector<Compared>& compared, bool has_noise) {
  if (arguments.html.empty()) return;
  std::vector<vitrine::ReportedCandidate> candidates;
  for (const Compared& one : compared) {
    candidates.push_back({.evaluation = &one.evaluation,
                          .comparison = &one.comparison,
                          .verdict = one.verdict ? &*one.verdict : nullptr,
                          .partings = one.logs.partings,
                          .first = one.logs.first,
                          .has_noise = has_noise});
  }
  vitrine::write_file_atomically(arguments.html, vitrine::report_page(baseline, candidates));
}

int run_compare(const CompareArguments& arguments) {
  require_other_files(arguments);
  const vitrine::Evaluation baseline = vitrine::read_evaluation(arguments.baseline);
  note_incomplete(baseline);
  const std::vector<vitrine::Evaluation> perturbed = read_all(arguments.noise);
  const vitrine::DeviationProfile noise = measure_noise(arguments.logs, baseline, perturbed);
  std::vector<Compared> compared;
  for (size_t i = 0; i < arguments.candidates.size(); ++i) {
    compared.push_back(compare(arguments, baseline, arguments.candidates[i], noise, i));
  }
  write_report(arguments, baseline, compared, noise.num_tokens() > 0);
  for (const Compared& one : compared) {
    if (arguments.json) {
      write_out(vitrine::comparison_json(one.comparison) + "\n");
    } else {
      show(baseline, one);
    }
  }
  return 0;
}

int run_gate(const CompareArguments& arguments) {
  require_other_files(arguments);
  const vitrine::GateFile gate = vitrine::GateFile::open(arguments.gate);
  const vitrine::Evaluation baseline = vitrine::read_evaluation(arguments.baseline);
  const std::vector<vitrine::Evaluation> perturbed = read_all(arguments.noise);
  const vitrine::DeviationProfile noise = measure_noise(arguments.logs, baseline, perturbed);
  std::vector<Compared> compared;
  compared.push_back(compare(arguments, baseline, arguments.candidates.front(), noise, 0));
  Compared& one = compared.front();
  one.verdict = vitrine::run_gate(gate, baseline, one.evaluation, perturbed);
  write_report(arguments, baseline, compared, noise.num_tokens() > 0);
  if (!arguments.seal.empty()) {
    const vitrine::SealKey key = vitrine::SealKey::load_or_create(arguments.seal);
    const std::string path =
        arguments.manifest.empty() ? one.evaluation.path + ".manifest.json" : arguments.manifest;
    vitrine::write_file_atomically(
        path, vitrine::seal_verdict(gate, baseline, one.evaluation, perturbed, key));
    write_note(path + ": the manifest");
  }
  if (arguments.json) {
    write_out(vitrine::verdict_json(*one.verdict) + "\n");
  } else {
    write_out(one.verdict->text());
    show_first(one);
    show_flips(one);
  }
  return one.verdict->exit_code();
}

void add_shared(CLI::App& command, CompareArguments& arguments) {
  command.add_option("baseline", arguments.baseline, "what `vitrine eval` wrote of the baseline")
      ->required()
      ->check(not_empty());
  command
      .add_option(
          "--noise", arguments.noise,
          "results of the baseline's model perturbed at the size of an ulp, which tell what "
          "noise alone does; may be given again")
      ->check(not_empty());
  command.add_option("--html", arguments.html, "a report as one page that opens without a network")
      ->check(not_empty());
  command.add_flag("--json", arguments.json, "the result as JSON");
  arguments.logs.add_to(command);
}

}  // namespace

void add_compare(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* compare =
      app.add_subcommand("compare", "Compares what eval wrote of models, item by item");
  add_shared(*compare, *arguments);
  compare
      ->add_option("candidates", arguments->candidates,
                   "what it wrote of candidates, on the same items")
      ->required()
      ->check(not_empty());
  compare->callback(
      [arguments, &command] { command = [arguments] { return run_compare(*arguments); }; });
}

void add_gate(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* gate = app.add_subcommand(
      "gate", "Holds a candidate to a gate; exits with 0: passes, 3: refused, 4: inconclusive");
  add_shared(*gate, *arguments);
  gate->add_option("candidate", arguments->candidates, "what eval wrote of the candidate")
      ->required()
      ->expected(1)
      ->check(not_empty());
  gate->add_option("--gate", arguments->gate,
                   "a gate's .toml file, or default, production, rounding or exact")
      ->check(not_empty())
      ->capture_default_str();
  gate->add_option("--seal", arguments->seal,
                   "Ed25519 secret key that signs a manifest; made where there is none")
      ->check(not_empty());
  gate->add_option("--manifest", arguments->manifest,
                   "where the manifest goes (default: CANDIDATE.manifest.json)")
      ->check(not_empty());
  gate->callback([arguments, &command] { command = [arguments] { return run_gate(*arguments); }; });
}

}  // namespace cli
