// SPDX-License-Identifier: Apache-2.0
// Puts a suite to a target: what is scored first, then what is generated, many answers at once.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "evaluation/ask.h"
#include "evaluation/digest.h"
#include "evaluation/repetition.h"
#include "evaluation/result_file.h"

namespace vitrine {

namespace {

using evaluation::Item;
using evaluation::Json;
using evaluation::Task;
using Clock = std::chrono::steady_clock;

constexpr int kBestTokens = 128;      // of each position of a text
constexpr int64_t kTextWindow = 512;  // tokens

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

EvaluatedItem begin_item(const Task& task, const Item& item) {
  EvaluatedItem result;
  result.task = task.told.name;
  result.id = item.id;
  result.group = item.group;
  result.is_critical = item.is_critical;
  // Gates go by how long that is from which something is recalled.
  const auto length = item.data.find("length");
  if (length != item.data.end() && length->is_number()) {
    result.parts["length"] = length->get<double>();
  }
  return result;
}

void take_choice(const Task& task, const Item& item, const ScoredContinuations& scored,
                 EvaluatedItem& result) {
  const Json& choices = item.data["choices"];
  // "bytes" and "tokens": by length, as lm-eval's acc_norm.
  const std::string norm = task.options.value("normalise", "none");
  std::vector<double> values;
  for (size_t i = 0; i < scored.logprobs.size(); ++i) {
    const auto& one = scored.logprobs[i];
    result.choice_logprobs.push_back(std::accumulate(one.begin(), one.end(), 0.0));
    const std::string text =
        choices[i].is_string() ? choices[i].get<std::string>() : choices[i].dump();
    const size_t length = norm == "bytes" ? text.size() : norm == "tokens" ? one.size() : 1;
    values.push_back(result.choice_logprobs.back() /
                     static_cast<double>(std::max<size_t>(1, length)));
  }
  const auto best = std::ranges::max_element(values) - values.begin();
  const auto text_at = [&](size_t at) {
    return choices[at].is_string() ? choices[at].get<std::string>() : choices[at].dump();
  };
  result.right_choice = item.data["answer"].get<int32_t>();
  result.answer = text_at(static_cast<size_t>(best));
  result.expected = text_at(static_cast<size_t>(result.right_choice));
  result.is_right = best == result.right_choice;
  result.score = result.is_right ? 1 : 0;
  const auto right = static_cast<size_t>(result.right_choice);
  double other = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != right) other = std::max(other, values[i]);
  }
  result.parts["margin"] = values[right] - other;
}

class SuiteRun {
 public:
  SuiteRun(const Suite& suite, EvaluationTarget& target, const std::string& path,
           const EvaluationOptions& options)
      : suite_(suite),
        target_(target),
        options_(options),
        takes_messages_(target.takes_messages()),
        file_(path, head(suite, target, options), options.overwrite) {
    for (const Task& task : suite.data().tasks) {
      if (is_asked(task.told, options)) total_ += task.items.size();
    }
  }

  bool run() {
    if (file_.is_complete()) return true;
    if (!tell(nullptr)) return false;
    if (!run_scored() || !run_answers()) return false;
    file_.finish(seconds());
    return true;
  }

 private:
  struct Asked {
    const Task* task;
    const Item* item;
    EvaluatedItem result;
  };

  /// Programs are asked for where they may be run: else nobody could read them.
  static bool is_asked(const SuiteTask& task, const EvaluationOptions& options) {
    return options.runs_code || task.scorer != "code";
  }

  static evaluation::RunHead head(const Suite& suite, const EvaluationTarget& target,
                                  const EvaluationOptions& options) {
    evaluation::RunHead head{suite.name(),
                             suite.version(),
                             suite.digest(),
                             target.facts_json(),
                             {suite.tasks().begin(), suite.tasks().end()}};
    for (SuiteTask& task : head.tasks) {
      if (is_asked(task, options)) continue;
      task.num_items = 0;
      task.left_out = "its answers are programs, which are run where the host says so (--run-code)";
    }
    return head;
  }
  double seconds() const { return file_.seconds() + seconds_since(begin_); }

  bool tell(const EvaluatedItem* item) const {
    if (!options_.on_progress) return true;
    return options_.on_progress({.done = file_.num_items(),
                                 .total = total_,
                                 .task = item != nullptr ? item->task : "",
                                 .item = item});
  }

  bool keep(EvaluatedItem& result) {
    result.digest = evaluation::item_digest(result);
    file_.add(result, seconds());
    return tell(&result);
  }

  // Texts and choices, and the references of answers, which stay until the answers are there.
  bool run_scored() {
    for (const Task& task : suite_.data().tasks) {
      if (!is_asked(task.told, options_)) continue;
      for (const Item& item : task.items) {
        if (file_.has(task.told.name, item.id)) continue;
        EvaluatedItem result = begin_item(task, item);
        if (task.told.kind == TaskKind::kAnswer) {
          if (evaluation::has_reference(item)) score_reference(task, item, result);
          asked_.push_back({&task, &item, std::move(result)});
          continue;
        }
        score(task, item, result);
        if (!keep(result)) return false;
      }
    }
    return true;
  }

  // What an item's own fault is stays with the item; a cancelled or a lost target ends the run.
  template <typename Work>
  static void guard(EvaluatedItem& result, const Work& work) {
    const auto begin = Clock::now();
    try {
      work();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInvalidArgument && error.kind() != ErrorKind::kUnsupported) {
        throw;
      }
      result.error = error.what();
      result.stop = "error";
      result.is_parsed = false;
    }
    result.total_seconds += seconds_since(begin);
  }

  void score(const Task& task, const Item& item, EvaluatedItem& result) {
    guard(result, [&] {
      if (task.told.kind == TaskKind::kText) return predict(task, item, result);
      const ScoredContinuations scored =
          target_.score(evaluation::scoring_request(task, item, takes_messages_));
      result.prompt_sha256 = scored.prompt_sha256;
      result.prompt_tokens = scored.prompt_tokens;
      take_choice(task, item, scored, result);
    });
  }

  // A target that answers and scores nothing (a server without 'echo') leaves an item without it.
  void score_reference(const Task& task, const Item& item, EvaluatedItem& result) {
    const auto begin = Clock::now();
    try {
      const ScoredContinuations scored =
          target_.score(evaluation::scoring_request(task, item, takes_messages_));
      const auto& logprobs = scored.logprobs.front();
      result.reference_logprob = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
      result.reference_tokens = std::ssize(logprobs);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported && error.kind() != ErrorKind::kInvalidArgument) {
        throw;
      }
    }
    result.total_seconds += seconds_since(begin);
  }

  void predict(const Task& task, const Item& item, EvaluatedItem& result) {
    const std::string text = item.data["text"].get<std::string>();
    const int64_t window = task.options.value("window", kTextWindow);
    result.positions = target_.predict(text, window, task.options.value("best", kBestTokens));
    // Tokens that end behind "scored_from", a byte of the text, count.
    const int64_t from = item.data.value("scored_from", int64_t{0});
    double sum = 0, count = 0;
    for (const TextPosition& position : result.positions) {
      if (from > 0 && position.end <= from) continue;
      sum += double{position.logprob};
      ++count;
    }
    result.prompt_tokens = std::ssize(result.positions) + 1;
    result.parts["logprob"] = count > 0 ? sum / count : 0;
    result.score = std::exp(std::min(0.0, result.parts["logprob"]));
  }

  bool run_answers() {
    size_t next = 0, running = 0;
    const auto most = static_cast<size_t>(target_.num_parallel());
    while (next < asked_.size() || running > 0) {
      while (next < asked_.size() && running < most) {
        Asked& asked = asked_[next++];
        const std::string name = asked.task->told.name + "/" + asked.item->id;
        guard(asked.result, [&] {
          target_.submit(evaluation::answer_request(*asked.task, *asked.item, takes_messages_),
                         name);
          ++running;
          in_flight_[name] = &asked;
        });
        if (asked.result.stop == "error" && !keep(asked.result)) return stop();
      }
      if (running == 0) continue;
      auto answer = target_.next_answer();
      if (!answer) throw Error(ErrorKind::kInternal, "a target lost an answer that was asked for");
      --running;
      Asked& asked = *in_flight_.at(answer->first);
      if (answer->second.stop == "cancelled") return stop();
      take_answer(asked, answer->second);
      if (!keep(asked.result)) return stop();
    }
    return true;
  }

  bool stop() {
    target_.cancel();
    while (target_.next_answer()) {
    }
    return false;
  }

  void take_answer(Asked& asked, const EvaluationTarget::Answer& answer) {
    EvaluatedItem& result = asked.result;
    result.answer = answer.text;
    result.tokens = answer.tokens;
    result.logprobs = answer.logprobs;
    result.prompt_sha256 = answer.prompt_sha256;
    result.stop = answer.stop;
    result.error = answer.error;
    result.audit = answer.audit;
    result.prompt_tokens = answer.counts.prompt_tokens;
    result.first_token_seconds = answer.counts.first_token_seconds;
    result.total_seconds += answer.counts.total_seconds;
    const evaluation::Scorer* scorer = evaluation::find_scorer(asked.task->told.scorer);
    if (scorer->expected != nullptr) result.expected = scorer->expected(*asked.item);
    if (answer.stop == "error") {
      result.is_parsed = false;
      return;
    }
    evaluation::Score score =
        scorer->score({*asked.item, asked.task->options, answer, options_.runs_code});
    result.score = std::clamp(score.value, 0.0, 1.0);
    result.is_right = score.is_right;
    result.is_parsed = score.is_parsed;
    result.extracted = std::move(score.extracted);
    result.parts.merge(score.parts);
    result.is_loop = evaluation::ends_in_repetition(answer.text);
  }

  const Suite& suite_;
  EvaluationTarget& target_;
  const EvaluationOptions& options_;
  const bool takes_messages_;
  evaluation::ResultFile file_;
  const Clock::time_point begin_ = Clock::now();
  size_t total_ = 0;
  std::vector<Asked> asked_;
  std::map<std::string, Asked*> in_flight_;
};

}  // namespace

bool evaluate(const Suite& suite, EvaluationTarget& target, const std::string& path,
              const EvaluationOptions& options) {
  try {
    return SuiteRun(suite, target, path, options).run();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled) return false;
    throw;
  }
}

}  // namespace vitrine
