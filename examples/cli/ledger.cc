// SPDX-License-Identifier: Apache-2.0
// vitrine ledger: bookings from sealed logs.
#include <fmt/format.h>

#include <set>

#include "audit_run.h"
#include "common.h"
#include "output_path.h"
#include "vitrine/ledger.h"

namespace cli {
namespace {

using vitrine::BookingKind;
using vitrine::Ledger;

struct LedgerArguments {
  std::vector<std::string> runs;
  std::string rates, ledger, key, decrypt, csv, parquet;
  bool allow_incomplete = false, json = false, is_strict = false;
};

std::vector<vitrine::RunAccount> read_runs(const LedgerArguments& arguments) {
  vitrine::RunOptions options;
  if (!arguments.key.empty()) options.key = vitrine::load_public_key(arguments.key);
  if (arguments.is_strict) require_private_key("--decrypt", arguments.decrypt);
  options.reader = reader_key(arguments.decrypt);
  options.allow_incomplete = arguments.allow_incomplete;
  std::vector<vitrine::RunAccount> runs;
  for (const std::string& path : arguments.runs) {
    runs.push_back(vitrine::read_run_account(path, options));
    for (size_t i = 0; i + 1 < runs.size(); ++i) {
      if (runs[i].log_id != runs.back().log_id) continue;
      refuse(path + ": is the log of " + runs[i].path + " again; expected each run once");
    }
  }
  return runs;
}

/// Millionths as "12.345678 EUR".
std::string money(int64_t micro, const std::string& currency) {
  const uint64_t size = micro < 0 ? 0 - static_cast<uint64_t>(micro) : static_cast<uint64_t>(micro);
  return fmt::format("{}{}.{:06} {}", micro < 0 ? "-" : "", size / 1'000'000, size % 1'000'000,
                     plain(currency));
}

std::string lines_text(const vitrine::Booking& booking) {
  std::string text;
  for (const vitrine::LedgerLine& line : booking.lines) {
    text += fmt::format("  {:>20}  {:<20} {}\n", money(line.micro, booking.currency),
                        plain(line.account), plain(line.memo));
  }
  return text;
}

/// The file that was booked, where it is another than the one at hand.
std::string other_copy(const vitrine::RunAccount& booked) {
  return fmt::format("{} ({} bytes, SHA-256 {}…), another copy of this run", booked.path,
                     booked.log_bytes, booked.proof.substr(0, 12));
}

std::string outcome_text(const Ledger& ledger, Ledger::Outcome outcome,
                         const vitrine::RunAccount& run, BookingKind kind) {
  if (outcome == Ledger::Outcome::kAdded) return "booked";
  if (outcome == Ledger::Outcome::kReplaced) {
    return "booked in place of what was booked of its open log";
  }
  const auto there = ledger.find(run.log_id, kind);
  const bool is_copy = there.has_value() && there->run.proof != run.proof;
  return "was booked before at these rates" +
         (is_copy ? " from " + plain(other_copy(there->run)) : "") + "; nothing changed";
}

int run_book(const LedgerArguments& arguments, BookingKind kind) {
  const auto rates = vitrine::LedgerRates::load(arguments.rates);
  const std::vector<vitrine::RunAccount> runs = read_runs(arguments);
  std::vector<vitrine::Booking> bookings;
  for (const vitrine::RunAccount& run : runs) bookings.push_back(rates.book(kind, run));
  require_output_folder("--out", arguments.ledger);
  auto ledger = Ledger::open_or_create(arguments.ledger);
  std::vector<Ledger::Item> items;
  for (size_t i = 0; i < runs.size(); ++i) items.push_back({runs[i], bookings[i], rates});
  const std::vector<Ledger::Outcome> outcomes = ledger.book(items);
  std::string text;
  for (size_t i = 0; i < runs.size(); ++i) {
    text += fmt::format("{}: {} {}{}\n", plain(runs[i].path), vitrine::booking_kind_name(kind),
                        outcome_text(ledger, outcomes[i], runs[i], kind),
                        runs[i].seal == vitrine::VtrReport::Seal::kOpen ? " (an open log)" : "");
    if (outcomes[i] != Ledger::Outcome::kWasThere) text += lines_text(bookings[i]);
  }
  write_out(text);
  return 0;
}

/// What verify says of one kind of booking of a run, and whether it is right.
std::pair<std::string, bool> verdict_on(const Ledger& ledger, const vitrine::RunAccount& run,
                                        BookingKind kind, const vitrine::LedgerRates& rates) {
  using Verdict = Ledger::Comparison::Verdict;
  const auto booked = ledger.find(run.log_id, kind);
  if (!booked.has_value()) return {"WRONG: not booked", false};
  try {
    const Ledger::Comparison comparison = Ledger::compare(*booked, run, rates);
    if (comparison.verdict == Verdict::kOther) return {"WRONG: " + comparison.difference, false};
    if (comparison.verdict == Verdict::kSame) return {"as the log and the rates make it", true};
  } catch (const vitrine::Error& error) {
    if (error.kind() != vitrine::ErrorKind::kInvalidArgument) throw;
    return {fmt::format("WRONG: can't be checked: {}", error.what()), false};
  }
  const std::string other = other_copy(booked->run);
  // Only a copy that lacks something may stand for another: its size is not what was paid for.
  if (run.is_whole) return {"WRONG: booked from " + other + "; expected this file, or that", false};
  return {"as the log and the rates make it, but for size and hash of what was booked, " + other,
          true};
}

/// Books nothing: computes everything from the logs anew and compares.
int run_verify(const LedgerArguments& arguments) {
  const auto rates = vitrine::LedgerRates::load(arguments.rates);
  const std::vector<vitrine::RunAccount> runs = read_runs(arguments);
  const auto ledger = Ledger::open(arguments.ledger);
  ledger.check();
  std::string text;
  bool is_right = true;
  for (const vitrine::RunAccount& run : runs) {
    bool is_there = false;
    for (const BookingKind kind : {BookingKind::kSettlement, BookingKind::kRoyalties}) {
      if (!rates.has(kind) && !ledger.find(run.log_id, kind).has_value()) continue;
      is_there = true;
      const auto [verdict, is_this_right] = verdict_on(ledger, run, kind, rates);
      is_right = is_right && is_this_right;
      text += fmt::format("{}: {}: {}\n", plain(run.path), vitrine::booking_kind_name(kind),
                          plain(verdict));
    }
    if (!is_there) text += fmt::format("{}: WRONG: nothing of it is booked\n", plain(run.path));
    is_right = is_right && is_there;
  }
  write_out(text);
  return is_right ? 0 : 1;
}

/// The ledger: --out, or the only argument.
Ledger open_ledger(LedgerArguments& arguments) {
  if (arguments.ledger.empty() && arguments.runs.size() == 1)
    arguments.ledger.swap(arguments.runs[0]);
  if (arguments.ledger.empty()) refuse("expected a ledger: --out LEDGER.sqlite");
  std::erase(arguments.runs, std::string());
  return Ledger::open(arguments.ledger);
}

/// Lines of the runs and rates that were named; of all where none were.
void for_each_wanted(const LedgerArguments& arguments, const Ledger& ledger,
                     const std::function<void(const Ledger::Entry&)>& use) {
  std::set<std::string> wanted;
  for (const std::string& path : arguments.runs) {
    wanted.insert(vitrine::read_log_id(path));
  }
  std::string rates;
  if (!arguments.rates.empty()) rates = vitrine::LedgerRates::load(arguments.rates).sha256();
  ledger.for_each([&](const Ledger::Entry& entry) {
    if (!wanted.empty() && !wanted.contains(entry.log_id)) return;
    if (rates.empty() || rates == entry.rates_sha256) use(entry);
  });
}

int run_show(LedgerArguments arguments) {
  const auto ledger = open_ledger(arguments);
  ledger.check();
  if (arguments.json) {
    nlohmann::ordered_json json;
    json["balances"] = nlohmann::ordered_json::array();
    for (const auto& balance : ledger.balances()) {
      json["balances"].push_back(
          {{"account", balance.account}, {"currency", balance.currency}, {"micro", balance.micro}});
    }
    json["lines"] = nlohmann::ordered_json::array();
    for_each_wanted(arguments, ledger, [&](const Ledger::Entry& entry) {
      json["lines"].push_back({{"log_id", entry.log_id},
                               {"run", entry.run},
                               {"proof", entry.proof},
                               {"seal", entry.seal},
                               {"kind", entry.kind},
                               {"tokens_in", entry.tokens_in},
                               {"tokens_out", entry.tokens_out},
                               {"log_bytes", entry.log_bytes},
                               {"device_us", entry.device_us},
                               {"account", entry.line.account},
                               {"micro", entry.line.micro},
                               {"currency", entry.currency},
                               {"memo", entry.line.memo}});
    });
    write_json(json);
    return 0;
  }
  std::string text, last;
  for_each_wanted(arguments, ledger, [&](const Ledger::Entry& entry) {
    const std::string head = entry.log_id + entry.kind;
    if (head != last) {
      text += fmt::format("{} of {} (log {}, {}, {} in, {} out, {:.3f} s)\n", entry.kind,
                          plain(entry.run), entry.log_id.substr(0, 12), entry.seal, entry.tokens_in,
                          entry.tokens_out, static_cast<double>(entry.device_us) / 1e6);
      last = head;
    }
    text += fmt::format("  {:>20}  {:<20} {}\n", money(entry.line.micro, entry.currency),
                        plain(entry.line.account), plain(entry.line.memo));
  });
  const bool is_filtered = !arguments.runs.empty() || !arguments.rates.empty();
  if (is_filtered && text.empty()) text = "nothing is booked of these\n";
  text += is_filtered ? "balances of the whole ledger\n" : "balances\n";
  for (const auto& balance : ledger.balances()) {
    text += fmt::format("  {:>20}  {}\n", money(balance.micro, balance.currency),
                        plain(balance.account));
  }
  write_out(text);
  return 0;
}

int run_export(LedgerArguments arguments) {
  const auto ledger = open_ledger(arguments);
  const std::string csv = arguments.csv == "-" ? "" : arguments.csv;
  std::vector<NamedPath> inputs;
  // SQLite keeps what is not yet in the file beside it.
  for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {
    inputs.emplace_back("the ledger", arguments.ledger + suffix);
  }
  refuse_same_file({"--csv", csv}, inputs);
  inputs.emplace_back("--csv", csv);
  if (arguments.parquet == "-") refuse("--parquet -: expected a file; --csv - is standard output");
  refuse_same_file({"--parquet", arguments.parquet}, inputs);
  ledger.check();
  // First what may fail for want of a library, too.
  if (!arguments.parquet.empty()) vitrine::export_parquet(ledger, arguments.parquet);
  if (arguments.csv == "-") {
    write_out(vitrine::csv_of(ledger));
  } else if (!arguments.csv.empty()) {
    vitrine::write_file_atomically(arguments.csv, vitrine::csv_of(ledger));
  }
  return 0;
}

CLI::App* add_booking(CLI::App& app, const char* name, const char* help,
                      const std::shared_ptr<LedgerArguments>& arguments) {
  CLI::App* command = app.add_subcommand(name, help);
  command->add_option("run", arguments->runs, "sealed logs (.vtr)")->required();
  command->add_option("--rates", arguments->rates, "JSON file: what is paid for what")->required();
  command->add_option("--out", arguments->ledger, "the ledger, a SQLite file")
      ->required()
      ->check(not_empty());
  command->add_option("--key", arguments->key, "public key that must have sealed the logs");
  command->add_option("--decrypt", arguments->decrypt, "secret key that opens encrypted logs");
  add_strict(*command, arguments->is_strict);
  command->add_flag("--allow-incomplete", arguments->allow_incomplete,
                    "open logs too (a crash, a cut), as far as they go; marked so");
  return command;
}

}  // namespace

void add_ledger(CLI::App& app, Command& command) {
  CLI::App* ledger = app.add_subcommand(
      "ledger", "What inferences cost and who earned by them, booked from their sealed logs");
  ledger->require_subcommand(1);
  auto arguments = std::make_shared<LedgerArguments>();
  const auto on = [&command, arguments](CLI::App* one, auto run) {
    one->callback(
        [arguments, &command, run] { command = [arguments, run] { return run(*arguments); }; });
  };
  on(add_booking(*ledger, "settle", "Books what each run's serving costs", arguments),
     [](const LedgerArguments& given) { return run_book(given, BookingKind::kSettlement); });
  on(add_booking(*ledger, "royalties", "Books what each contributor of each run earned", arguments),
     [](const LedgerArguments& given) { return run_book(given, BookingKind::kRoyalties); });
  on(add_booking(*ledger, "verify",
                 "Computes the bookings of these runs anew (exit code 1: something differs)",
                 arguments),
     run_verify);
  CLI::App* show = ledger->add_subcommand("show", "Lines and balances");
  show->add_option("run", arguments->runs, "only of these logs; without --out, the ledger");
  show->add_option("--out", arguments->ledger, "the ledger");
  show->add_option("--rates", arguments->rates, "only what was booked at these");
  show->add_flag("--json", arguments->json, "one JSON object instead of lines");
  on(show, run_show);
  CLI::App* out = ledger->add_subcommand("export", "All lines as CSV or Parquet");
  out->add_option("run", arguments->runs, "the ledger")->expected(0, 1)->option_text("LEDGER");
  out->add_option("--out", arguments->ledger, "the same");
  CLI::Option* csv =
      out->add_option("--csv", arguments->csv, "CSV file to write; -: standard output");
  CLI::Option* parquet = out->add_option("--parquet", arguments->parquet, "Parquet file to write");
  out->callback([arguments, &command, csv, parquet] {
    if (csv->empty() && parquet->empty()) refuse("expected --csv FILE or --parquet FILE");
    command = [arguments] { return run_export(*arguments); };
  });
}

}  // namespace cli
