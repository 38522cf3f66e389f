// SPDX-License-Identifier: Apache-2.0
// vitrine samples: results of `eval` as lm-eval's samples, and these as results.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "common.h"
#include "suite_choice.h"
#include "vitrine/lm_eval.h"

namespace cli {

namespace {

struct SamplesArguments {
  std::vector<std::string> inputs;
  std::string out, suite;
  SuiteChoice choice;
};

/// The samples files that an argument names: a file, or a folder that has some.
std::vector<std::string> samples_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (!std::filesystem::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : std::filesystem::directory_iterator(input)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("samples_") && name.ends_with(".jsonl")) {
        files.push_back(entry.path().string());
      }
    }
    if (files.size() == before) {
      refuse(input + ": has no samples_*.jsonl; expected a folder where lm-eval logged samples");
    }
    std::sort(files.begin() + static_cast<ptrdiff_t>(before), files.end());
  }
  return files;
}

int run_samples(const SamplesArguments& arguments) {
  const bool writes = std::ranges::all_of(
      arguments.inputs, [](const std::string& input) { return input.ends_with(".eval"); });
  if (!writes) {
    require_output_folder("--out", arguments.out);
    const size_t count =
        vitrine::read_lm_eval_samples(samples_files(arguments.inputs), arguments.out);
    write_note(fmt::format("{}: {} items of lm-eval's", arguments.out, count));
    return 0;
  }
  if (arguments.inputs.size() > 1) {
    refuse("several results of `eval`; expected one, or samples of lm-eval's");
  }
  const vitrine::Evaluation evaluation = vitrine::read_evaluation(arguments.inputs.front());
  const std::string name = arguments.suite.empty() ? evaluation.suite : arguments.suite;
  write_lm_eval_samples(evaluation, vitrine::Suite::open(name, arguments.choice.options()),
                        arguments.out);
  write_note(fmt::format("{}: samples of {} items", arguments.out, evaluation.items.size()));
  return 0;
}

}  // namespace

void add_samples(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<SamplesArguments>();
  CLI::App* samples = app.add_subcommand(
      "samples", "Writes results of eval as lm-eval's samples, or reads these as results");
  samples
      ->add_option("inputs", arguments->inputs,
                   "results of eval (.eval), or samples_*.jsonl of lm-eval's, or their folder")
      ->required()
      ->check(CLI::ExistingPath);
  samples
      ->add_option("--out", arguments->out,
                   "folder for samples_TASK.jsonl; of lm-eval's samples, the .eval file")
      ->required()
      ->check(not_empty());
  samples->add_option("--suite", arguments->suite,
                      "the suite of the results (default: the built-in one of its name)");
  arguments->choice.add_to(*samples, "as they were given to eval", "as they were given to eval",
                           "as it was given to eval");
  samples->callback(
      [arguments, &command] { command = [arguments] { return run_samples(*arguments); }; });
}

}  // namespace cli
