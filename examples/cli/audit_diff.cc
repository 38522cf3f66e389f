// SPDX-License-Identifier: Apache-2.0
// vitrine audit diff.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "audit.h"
#include "hidden_values.h"

namespace cli {

namespace {

using vitrine::TokenRecord;

/// A sequence's records by order, so that two runs with other sequence numbers compare.
std::vector<std::vector<size_t>> by_sequence(const Run& run) {
  std::map<uint64_t, size_t> order;
  std::vector<std::vector<size_t>> sequences;
  for (size_t i = 0; i < run.records.size(); ++i) {
    const auto [found, is_new] = order.emplace(run.records[i].sequence, sequences.size());
    if (is_new) sequences.emplace_back();
    sequences[found->second].push_back(i);
  }
  return sequences;
}

/// The marks of two records whose digests differ, where a log has rounded values.
MarkPair marks_of(const Run& a, size_t left, const Run& b, size_t right) {
  if (a.digests.empty() || b.digests.empty() || a.digests[left] == b.digests[right]) return {};
  if (a.level == "full" && b.level == "full") return {};
  const auto marks = [](const Run& run, size_t index) {
    if (run.level != "full") return run.layer_marks[index];
    return is_redacted(run, index) ? std::vector<vitrine::LayerMark>()
                                   : vitrine::layer_marks(run.records[index]);
  };
  return {marks(a, left), marks(b, right)};
}

/// Takes records of wrong guesses off the end of an attempt: they predict nothing, and stand behind
/// one that chose a token.
void drop_guesses(const Run& run, std::vector<size_t>& attempt) {
  const auto predicts = [&](size_t index) { return run.records[index].has_prediction; };
  const auto last = std::find_if(attempt.rbegin(), attempt.rend(), predicts);
  if (last == attempt.rend() || !run.records[*last].prediction.generated) return;
  attempt.erase(last.base(), attempt.end());
}

/// The records of a sequence by attempt: one ends where positions go back, but to behind guesses.
std::vector<std::vector<size_t>> attempts_of(const Run& run, const std::vector<size_t>& sequence) {
  std::vector<std::vector<size_t>> attempts;
  for (const size_t index : sequence) {
    const auto goes_on = [&] {
      return run.records[index].position > run.records[attempts.back().back()].position;
    };
    if (!attempts.empty() && !goes_on()) drop_guesses(run, attempts.back());
    if (attempts.empty() || !goes_on()) attempts.emplace_back();
    attempts.back().push_back(index);
  }
  if (!attempts.empty()) drop_guesses(run, attempts.back());
  return attempts;
}

/// Where the failures of constraints differ, as a line; a log that left something out may lack
/// them.
std::string failures_text(const Run& a, const Run& b) {
  const auto may_lack = [](const Run& run) {
    return run.failures.empty() && !hidden_text(run).empty();
  };
  if (may_lack(a) || may_lack(b)) return "";
  const auto tied = [](const vitrine::ConstraintFailure& of) {
    return std::tie(of.kind, of.attempt, of.position, of.token, of.allowed, of.in_time, of.message,
                    of.state.num_bytes, of.state.num_readings, of.state.readings,
                    of.state.next_bytes, of.state.completion);
  };
  const auto is_same = [&](const auto& x, const auto& y) { return tied(x) == tied(y); };
  if (std::ranges::equal(a.failures, b.failures, is_same)) return "";
  return fmt::format("failures of constraints differ: {} and {}\n", a.failures.size(),
                     b.failures.size());
}

/// Compares two runs position by position.
class RunComparison {
 public:
  RunComparison(const Run& a, const Run& b) : a_(a), b_(b) {
    // Rounded values differ by up to one half in the last of 8 bits (norms), or 11.
    is_rounded_ = a.is_rounded != b.is_rounded;
    has_digests_ = !a.digests.empty() && !b.digests.empty();
  }

  void sequences(const std::vector<size_t>& left, const std::vector<size_t>& right) {
    const auto x = attempts_of(a_, left), y = attempts_of(b_, right);
    const std::vector<size_t> none;
    for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
      attempts(i < x.size() ? x[i] : none, i < y.size() ? y[i] : none);
    }
  }

  bool is_equal() const { return num_different_ + num_only_a_ + num_only_b_ == 0; }

  std::string text() const {
    const bool is_digested = has_digests_ && num_undigested_ == 0;
    const char* how = num_hidden_ > 0 ? "in every value that both have"
                      : is_digested   ? "to the last bit (digests)"
                      : is_rounded_   ? "up to the rounding of level standard"
                                      : "in every value";
    std::string text = first_ + fmt::format("{} records equal {}, {} different\n", num_equal_, how,
                                            num_different_);
    if (!by_kind_.empty()) text += "of these differ in " + kinds_text() + "\n";
    if (num_only_a_ + num_only_b_ > 0) {
      text += fmt::format("{} positions are only in {}, {} only in {}\n", num_only_a_, a_.path,
                          num_only_b_, b_.path);
    }
    if (num_hidden_ > 0) {
      text += fmt::format(
          "{} of them lack columns in one of the logs, left out or encrypted{}\n", num_hidden_,
          is_digested
              ? ": there what both have was compared; the digests vouch for tokens, predictions, "
                "routes and norms that are missing, and for no other column"
              : fmt::format(": there what both have was compared, of {} without digests",
                            num_undigested_));
    }
    return text;
  }

 private:
  /// "routing 3, norm 3, entropy 1": in how many records, the most first.
  std::string kinds_text() const {
    std::vector<std::pair<std::string, size_t>> kinds(by_kind_.begin(), by_kind_.end());
    std::ranges::stable_sort(kinds, std::ranges::greater(),
                             &std::pair<std::string, size_t>::second);
    std::string text;
    for (const auto& [kind, count] : kinds) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, count);
    }
    return text;
  }
  void attempts(const std::vector<size_t>& x, const std::vector<size_t>& y) {
    for (size_t i = 0, j = 0; i < x.size() || j < y.size();) {
      const bool is_both = i < x.size() && j < y.size();
      const int64_t left = i < x.size() ? a_.records[x[i]].position : 0;
      const int64_t right = j < y.size() ? b_.records[y[j]].position : 0;
      if (is_both && left == right) {
        records(x[i++], y[j++]);
        continue;
      }
      const bool is_left = is_both ? left < right : i < x.size();
      ++(is_left ? num_only_a_ : num_only_b_);
      const TokenRecord& record = is_left ? a_.records[x[i++]] : b_.records[y[j++]];
      note(record, fmt::format("is only in {}", is_left ? a_.path : b_.path));
    }
  }

  void records(size_t x, size_t y) {
    const HiddenSides hidden{is_redacted(a_, x), is_redacted(b_, y)};
    const bool is_digested = has_digests_ && a_.digests[x] != 0 && b_.digests[y] != 0;
    num_hidden_ += hidden.left || hidden.right ? 1 : 0;
    num_undigested_ += is_digested ? 0 : 1;
    const auto difference =
        find_difference(a_, a_.records[x], b_.records[y], is_rounded_ ? 0.005 : 0, hidden,
                        is_digested ? marks_of(a_, x, b_, y) : MarkPair{});
    std::string what = difference ? difference->text() : "";
    std::vector<std::string> kinds = difference ? difference->kinds : std::vector<std::string>();
    if (what.empty() && !a_.text.empty() && !b_.text.empty() && !a_.text[x].empty() &&
        !b_.text[y].empty() && a_.text[x] != b_.text[y] &&
        (a_.report.has_value() == b_.report.has_value())) {
      what = "text";
      kinds = {"text"};
    }
    if (what.empty() && is_digested && a_.digests[x] != b_.digests[y]) {
      what = "unrounded values (their digests)";
      kinds = {what};
    }
    ++(what.empty() ? num_equal_ : num_different_);
    for (const std::string& kind : kinds) ++by_kind_[kind];
    if (!what.empty()) note(a_.records[x], what);
  }

  void note(const TokenRecord& record, const std::string& what) {
    if (!first_.empty()) return;
    first_ = fmt::format("first difference: sequence {}, position {}: {}\n", record.sequence,
                         record.position, what);
  }

  const Run &a_, &b_;
  bool is_rounded_ = false, has_digests_ = false;
  size_t num_equal_ = 0, num_different_ = 0, num_only_a_ = 0, num_only_b_ = 0;
  size_t num_hidden_ = 0, num_undigested_ = 0;
  std::map<std::string, size_t> by_kind_;  // records that differ in it
  std::string first_;
};

/// As text, or as numbers where both are: a JSON log has an option's number in its own form.
bool is_same_option(const std::string& left, const std::string& right) {
  if (left == right) return true;
  double a = 0, b = 0;
  const auto read = [](const std::string& text, double& value) {
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    return status == std::errc() && end == text.data() + text.size();
  };
  return read(left, a) && read(right, b) && a == b;
}

/// What the runs were made with, where it differs: it tells where other tokens come from.
std::string settings_text(const vitrine::LogHeader& a, const vitrine::LogHeader& b) {
  std::string text;
  const auto add = [&text](const std::string& name, const std::string& x, const std::string& y) {
    if (is_same_option(x, y)) return;
    const auto shown = [](const std::string& of) { return of.empty() ? "none" : plain(of); };
    text +=
        fmt::format("{}{} {} and {}", text.empty() ? "" : "; ", plain(name), shown(x), shown(y));
  };
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  const auto add_all = [&](const std::string& of, const Pairs& left, const Pairs& right) {
    std::map<std::string, std::pair<std::string, std::string>> values;
    for (const auto& [name, value] : left) values[name].first = value;
    for (const auto& [name, value] : right) values[name].second = value;
    for (const auto& [name, both] : values) add(of + name, both.first, both.second);
  };
  if (a.seed != b.seed) text = fmt::format("seed {} and {}", a.seed, b.seed);  // all 64 bits
  add_all("", a.sampler, b.sampler);
  add_all("", a.engine, b.engine);
  add_all("constraint's ", a.constraint, b.constraint);
  add("device", a.device, b.device);
  add("kernels", a.kernels, b.kernels);
  add("instruction set", a.isa, b.isa);
  add_all("SHA-256 of ", a.hashes, b.hashes);
  return text.empty() ? "" : "made with other settings: " + text + "\n";
}

}  // namespace

int run_audit_diff(const AuditArguments& arguments) {
  const Run a = load_run(arguments.run, arguments.model, arguments.decrypt, arguments.most_bytes);
  const Run b = load_run(arguments.other, arguments.model, arguments.decrypt, arguments.most_bytes);
  require_records(a);
  require_records(b);
  const auto sequences_a = by_sequence(a), sequences_b = by_sequence(b);
  std::string warnings = settings_text(a.header, b.header);
  for (const Run* run : {&a, &b}) {
    if (!is_complete(*run)) warnings += fmt::format("{}: {}\n", run->path, account_line(*run));
  }
  if (sequences_a.size() != sequences_b.size()) {
    warnings += fmt::format(
        "{} has {} sequences with records, {} has {}; the first ones are "
        "compared in their order\n",
        a.path, sequences_a.size(), b.path, sequences_b.size());
  }
  const std::string failures = failures_text(a, b);
  RunComparison comparison(a, b);
  const std::vector<size_t> none;
  for (size_t i = 0; i < std::max(sequences_a.size(), sequences_b.size()); ++i) {
    comparison.sequences(i < sequences_a.size() ? sequences_a[i] : none,
                         i < sequences_b.size() ? sequences_b[i] : none);
  }
  write_out(warnings + comparison.text() + failures);
  return comparison.is_equal() && failures.empty() ? 0 : 1;
}

}  // namespace cli
