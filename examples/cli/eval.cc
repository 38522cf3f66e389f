// SPDX-License-Identifier: Apache-2.0
// vitrine eval: a suite put to a model, item by item, into a file that compare and gate read.
#include <fmt/format.h>
#include <unistd.h>

#include <map>

#include "common.h"
#include "eval_target.h"
#include "suite_choice.h"
#include "vitrine/evaluation.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

struct EvalArguments {
  EvalTargetOptions target;
  SuiteChoice suite;
  std::string suite_name = "core", out;
  bool overwrite = false, runs_code = false, quiet = false, json = false;
};

/// One line on a terminal that moves on with each item; else nothing.
class ProgressLine {
 public:
  explicit ProgressLine(bool is_wanted) : is_shown_(is_wanted && ::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  bool tell(const vitrine::EvaluationProgress& progress) {
    if (progress.item == nullptr) earlier_ = progress.done;
    const auto now = Clock::now();
    if (is_shown_ && now >= next_) {
      next_ = now + std::chrono::milliseconds(100);
      const double seconds = seconds_since(begin_);
      const auto done = static_cast<double>(progress.done - earlier_);
      const auto left = static_cast<double>(progress.total - progress.done);
      const std::string rest =
          done > 0 && seconds > 2 ? fmt::format(", {:.0f} s to go", seconds / done * left) : "";
      fmt::print(stderr, "\r\033[K{} of {} items{}   {}", progress.done, progress.total, rest,
                 progress.task);
      std::fflush(stderr);
    }
    return interrupt_signal() == 0;
  }
  void clear() const {
    if (is_shown_) fmt::print(stderr, "\r\033[K");
  }

 private:
  const bool is_shown_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_;
  size_t earlier_ = 0;
};

struct TaskSum {
  size_t items = 0, right = 0, unparsed = 0, loops = 0, errors = 0;
  double score = 0;
};

std::map<std::string, TaskSum> sum_tasks(const vitrine::Evaluation& evaluation) {
  std::map<std::string, TaskSum> sums;
  for (const vitrine::EvaluatedItem& item : evaluation.items) {
    TaskSum& sum = sums[item.task];
    ++sum.items;
    sum.right += item.is_right ? 1 : 0;
    sum.unparsed += item.is_parsed ? 0 : 1;
    sum.loops += item.is_loop ? 1 : 0;
    sum.errors += item.error.empty() ? 0 : 1;
    sum.score += item.score;
  }
  return sums;
}

nlohmann::ordered_json summary_json(const vitrine::Evaluation& evaluation) {
  const auto sums = sum_tasks(evaluation);
  nlohmann::ordered_json tasks = nlohmann::ordered_json::array();
  for (const vitrine::SuiteTask& task : evaluation.tasks) {
    const auto found = sums.find(task.name);
    if (found == sums.end()) continue;
    const TaskSum& sum = found->second;
    tasks.push_back({{"task", task.name},
                     {"domain", task.domain},
                     {"items", sum.items},
                     {"right", sum.right},
                     {"chance", task.chance},
                     {"score", sum.score / static_cast<double>(sum.items)},
                     {"unparsed", sum.unparsed},
                     {"loops", sum.loops},
                     {"errors", sum.errors}});
  }
  return {{"suite", evaluation.suite},
          {"items", evaluation.items.size()},
          {"seconds", evaluation.seconds},
          {"tasks", tasks}};
}

void show_summary(const vitrine::Evaluation& evaluation) {
  const auto sums = sum_tasks(evaluation);
  std::string text = fmt::format("{:<24} {:<8} {:>6} {:>8} {:>8} {:>9} {:>6}\n", "task", "domain",
                                 "items", "right", "chance", "unparsed", "loops");
  for (const vitrine::SuiteTask& task : evaluation.tasks) {
    const auto found = sums.find(task.name);
    if (found == sums.end()) continue;
    const TaskSum& sum = found->second;
    const auto items = static_cast<double>(sum.items);
    const std::string right =
        task.kind == vitrine::TaskKind::kText
            ? fmt::format("p {:.3f}", sum.score / items)  // of a token, the geometric mean
            : fmt::format("{:.1f} %", 100 * static_cast<double>(sum.right) / items);
    text += fmt::format(
        "{:<24} {:<8} {:>6} {:>8} {:>8} {:>9} {:>6}{}\n", task.name, task.domain, sum.items, right,
        task.kind == vitrine::TaskKind::kText ? std::string("-")
                                              : fmt::format("{:.0f} %", 100 * task.chance),
        sum.unparsed, sum.loops, sum.errors == 0 ? "" : fmt::format("  {} errors", sum.errors));
  }
  write_out(text);
}

int run_eval(const EvalArguments& arguments) {
  require_output_folder("--out", arguments.out);
  const vitrine::Suite suite =
      vitrine::Suite::open(arguments.suite_name, arguments.suite.options());
  if (!arguments.quiet) {
    for (const vitrine::SuiteTask& task : suite.tasks()) {
      if (!task.left_out.empty()) {
        write_note(fmt::format("task {} is left out: {}", task.name, task.left_out));
      }
    }
  }
  catch_interrupts();
  const std::unique_ptr<vitrine::EvaluationTarget> target = open_eval_target(arguments.target);
  ProgressLine line(!arguments.quiet);
  vitrine::EvaluationOptions run;
  run.overwrite = arguments.overwrite;
  run.runs_code = arguments.runs_code;
  run.on_progress = [&](const vitrine::EvaluationProgress& progress) {
    return line.tell(progress);
  };
  const bool is_whole = vitrine::evaluate(suite, *target, arguments.out, run);
  line.clear();
  if (!is_whole) {
    write_note(arguments.out + ": stopped by a signal; the same command goes on there");
    return 128 + interrupt_signal();
  }
  const vitrine::Evaluation evaluation = vitrine::read_evaluation(arguments.out);
  if (arguments.json) {
    write_json(summary_json(evaluation));
  } else if (!arguments.quiet) {
    show_summary(evaluation);
    write_note(fmt::format("{}: {} items in {:.0f} s", arguments.out, evaluation.items.size(),
                           evaluation.seconds));
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* eval = app.add_subcommand(
      "eval", "Puts a suite of items to a model, into a file that compare and gate read");
  add_model(*eval, arguments->target.model,
            "folder of the model, a .gguf file, or http://HOST:PORT/v1 of a server")
      ->required();
  eval->add_option("--suite", arguments->suite_name, "a built-in suite, or a suite's .toml file")
      ->check(not_empty())
      ->capture_default_str();
  arguments->suite.add_to(
      *eval, "only these of its tasks or domains, with commas",
      "items of each task at most: a number, default (as the suite says) or all",
      "the longest prompt of tasks that come in lengths, in tokens (default: as the suite says)");
  eval->add_option("--out", arguments->out,
                   "the results, a line an item; where it holds some of this run, the rest is "
                   "made")
      ->required()
      ->check(not_empty());
  eval->add_flag("--overwrite", arguments->overwrite, "replace what is there, and begin anew");
  eval->add_flag("--run-code", arguments->runs_code,
                 "run programs that the model wrote, in a child process without network");
  eval->add_flag("--json", arguments->json, "the summary as JSON");
  eval->add_flag("-q,--quiet", arguments->quiet, "nothing on standard error");
  arguments->target.add_to(*eval);
  eval->callback([arguments, &command] { command = [arguments] { return run_eval(*arguments); }; });
}

}  // namespace cli
