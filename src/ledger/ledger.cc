// SPDX-License-Identifier: Apache-2.0
// The ledger's file: SQLite, one transaction a booking, so that a failure leaves what was there.
#include "vitrine/ledger.h"

#include <filesystem>

#include "core/json_text.h"
#include "database.h"
#include "tables.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using ledger::Database;
using ledger::Statement;
using ledger::Transaction;

VtrReport::Seal seal_of(const std::string& name) {
  return name == seal_name(VtrReport::Seal::kComplete) ? VtrReport::Seal::kComplete
                                                       : VtrReport::Seal::kOpen;
}

std::string short_hash(const std::string& hash) { return hash.substr(0, 12) + "…"; }

}  // namespace

std::string_view booking_kind_name(BookingKind kind) {
  return kind == BookingKind::kSettlement ? "settlement" : "royalties";
}

struct Ledger::Impl {
  Impl(const std::string& path, int flags) : database(path, flags) {}
  Database database;

  void add(const Item& item) const {
    const RunAccount& run = item.run;
    Statement(database, "INSERT INTO runs VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING")
        .bind(run.log_id)
        .bind(run.model)
        .bind(run.device)
        .bind(run.engine_build)
        .bind(static_cast<int64_t>(run.started_unix_ns))
        .next();
    Statement(database, "INSERT INTO rates VALUES (?,?) ON CONFLICT DO NOTHING")
        .bind(item.rates.sha256())
        .bind(item.rates.text())
        .next();
    Statement(database, "INSERT INTO bookings VALUES (NULL,?,?,?,?,?,?,?,?,?,?,?,?,?)")
        .bind(run.log_id)
        .bind(std::string(booking_kind_name(item.booking.kind)))
        .bind(item.booking.currency)
        .bind(item.booking.rates_sha256)
        .bind(run.path)
        .bind(run.proof)
        .bind(run.sealed_by)
        .bind(std::string(seal_name(run.seal)))
        .bind(static_cast<int64_t>(run.closed_unix_ns))
        .bind(run.tokens_in)
        .bind(run.tokens_out)
        .bind(run.log_bytes)
        .bind(run.device_us)
        .next();
    const int64_t booking = sqlite3_last_insert_rowid(database.handle());
    for (const LedgerLine& line : item.booking.lines) {
      Statement(database, "INSERT INTO lines (booking, account, micro, memo) VALUES (?,?,?,?)")
          .bind(booking)
          .bind(line.account)
          .bind(line.micro)
          .bind(line.memo)
          .next();
    }
  }

  void remove(const Booked& there) const {
    for (const char* sql :
         {"DELETE FROM lines WHERE booking = ?", "DELETE FROM bookings WHERE id = ?"}) {
      Statement(database, sql).bind(there.id).next();
    }
  }

  void require_none(const char* sql,
                    const std::function<std::string(const Statement&)>& tell) const {
    Statement rows(database, sql);
    if (rows.next()) throw Error(ErrorKind::kBadFile, database.path() + ": " + tell(rows));
  }
};

Ledger::Ledger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;
Ledger::~Ledger() = default;

Ledger Ledger::open(const std::string& path) {
  auto impl = std::make_unique<Impl>(path, SQLITE_OPEN_READWRITE);
  ledger::bring_up_to_date(impl->database);
  return Ledger(std::move(impl));
}

Ledger Ledger::open_or_create(const std::string& path) {
  std::error_code error;
  const bool was_there = path.empty() || std::filesystem::exists(path, error);
  auto impl = std::make_unique<Impl>(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  try {
    ledger::make_tables(impl->database);
    ledger::bring_up_to_date(impl->database);
  } catch (...) {
    const bool is_anothers = impl->database.is_busy();
    impl.reset();
    // A new file that could not be filled is no ledger; one that another process fills has no size
    // yet, either.
    if (!was_there && !is_anothers && std::filesystem::file_size(path, error) == 0) {
      std::filesystem::remove(path, error);
    }
    throw;
  }
  return Ledger(std::move(impl));
}

const std::string& Ledger::path() const { return impl_->database.path(); }

std::vector<Ledger::Outcome> Ledger::book(std::span<const Item> items) {
  for (const Item& item : items) {
    if (item.booking == item.rates.book(item.booking.kind, item.run)) continue;
    throw Error(
        ErrorKind::kInvalidArgument,
        item.run.path + ": a " + std::string(booking_kind_name(item.booking.kind)) +
            " that the rates do not make of this run; expected what LedgerRates::book gives");
  }
  Transaction transaction(impl_->database);
  std::vector<Outcome> outcomes;
  for (const Item& item : items) {
    const std::optional<Booked> there = find(item.run.log_id, item.booking.kind);
    if (!there.has_value()) {
      impl_->add(item);
      outcomes.push_back(Outcome::kAdded);
      continue;
    }
    const auto fail = [&](const std::string& how, const std::string& expected) {
      throw Error(ErrorKind::kInvalidArgument,
                  item.run.path + ": its " + std::string(booking_kind_name(item.booking.kind)) +
                      " is booked in " + impl_->database.path() + " " + how + "; expected " +
                      expected + ", or another ledger");
    };
    if (there->booking.rates_sha256 != item.booking.rates_sha256) {
      fail("at other rates (" + short_hash(there->booking.rates_sha256) + ")", "those");
    }
    if (compare(*there, item.run, item.rates).verdict != Comparison::Verdict::kOther) {
      outcomes.push_back(Outcome::kWasThere);
    } else if (there->run.seal == VtrReport::Seal::kOpen &&
               item.run.seal == VtrReport::Seal::kComplete) {
      impl_->remove(*there);
      impl_->add(item);
      outcomes.push_back(Outcome::kReplaced);
    } else {
      fail("with other lines, from " + there->run.path + " (" +
               std::string(seal_name(there->run.seal)) + ", SHA-256 " +
               short_hash(there->run.proof) + ")",
           "that file or a whole copy of it");
    }
  }
  transaction.commit();
  return outcomes;
}

std::optional<Ledger::Booked> Ledger::find(const std::string& log_id, BookingKind kind) const {
  Statement head(impl_->database,
                 "SELECT id, currency, rates_sha256, path, proof, sealed_by, seal, model, device, "
                 "engine, started_unix_ns, closed_unix_ns, tokens_in, tokens_out, log_bytes, "
                 "device_us FROM bookings JOIN runs USING (log_id) WHERE log_id = ? AND kind = ?");
  head.bind(log_id).bind(std::string(booking_kind_name(kind)));
  if (!head.next()) return std::nullopt;
  Booked booked;
  booked.id = head.integer(0);
  booked.booking = {log_id, kind, head.text(1), head.text(2), {}};
  RunAccount& run = booked.run;
  run.log_id = log_id;
  run.path = head.text(3);
  run.proof = head.text(4);
  run.sealed_by = head.text(5);
  run.seal = seal_of(head.text(6));
  run.model = head.text(7);
  run.device = head.text(8);
  run.engine_build = head.text(9);
  run.started_unix_ns = static_cast<uint64_t>(head.integer(10));
  run.closed_unix_ns = static_cast<uint64_t>(head.integer(11));
  int64_t* numbers[] = {&run.tokens_in, &run.tokens_out, &run.log_bytes, &run.device_us};
  for (int i = 0; i < 4; ++i) *numbers[i] = head.integer(12 + i);
  Statement lines(impl_->database,
                  "SELECT account, micro, memo FROM lines WHERE booking = ? ORDER BY id");
  lines.bind(booked.id);
  while (lines.next()) {
    booked.booking.lines.push_back({lines.text(0), lines.integer(1), lines.text(2)});
  }
  return booked;
}

std::vector<Ledger::Balance> Ledger::balances() const {
  Statement statement(impl_->database,
                      "SELECT currency, account, sum(micro) FROM lines JOIN bookings "
                      "ON bookings.id = booking GROUP BY currency, account ORDER BY 1, 2");
  std::vector<Balance> all;
  while (statement.next()) {
    all.push_back({statement.text(1), statement.text(0), statement.integer(2)});
  }
  return all;
}

void Ledger::for_each(const std::function<void(const Entry&)>& use) const {
  if (!use) {
    throw Error(ErrorKind::kInvalidArgument, "a ledger's entries go to no function; expected one");
  }
  Statement rows(impl_->database,
                 "SELECT log_id, path, model, proof, sealed_by, seal, kind, currency, "
                 "rates_sha256, closed_unix_ns, tokens_in, tokens_out, log_bytes, device_us, "
                 "account, micro, memo FROM lines JOIN bookings ON bookings.id = booking "
                 "JOIN runs USING (log_id) ORDER BY lines.id");
  while (rows.next()) {
    Entry entry;
    std::string* texts[] = {&entry.log_id, &entry.run,       &entry.model,
                            &entry.proof,  &entry.sealed_by, &entry.seal,
                            &entry.kind,   &entry.currency,  &entry.rates_sha256};
    for (int i = 0; i < 9; ++i) *texts[i] = rows.text(i);
    entry.closed_unix_ns = static_cast<uint64_t>(rows.integer(9));
    int64_t* numbers[] = {&entry.tokens_in, &entry.tokens_out, &entry.log_bytes, &entry.device_us};
    for (int i = 0; i < 4; ++i) *numbers[i] = rows.integer(10 + i);
    entry.line = {rows.text(14), rows.integer(15), rows.text(16)};
    use(entry);
  }
}

void Ledger::check() const {
  Statement whole(impl_->database, "PRAGMA integrity_check");
  if (!whole.next() || whole.text(0) != "ok") {
    throw Error(ErrorKind::kBadFile, impl_->database.path() +
                                         ": SQLite finds damage: " + whole.text(0) +
                                         "; restore it from a copy, or book its logs anew");
  }
  impl_->require_none("PRAGMA foreign_key_check", [](const Statement& row) {
    return "row " + std::to_string(row.integer(1)) + " of '" + row.text(0) +
           "' belongs to a row of '" + row.text(2) + "' that is gone; expected both";
  });
  impl_->require_none(
      "SELECT id, kind, seal FROM bookings WHERE kind NOT IN ('settlement', 'royalties') "
      "OR seal NOT IN ('complete', 'open')",
      [](const Statement& row) {
        return "booking " + std::to_string(row.integer(0)) + " is of kind " +
               quote_text(row.text(1)) + " and seal " + quote_text(row.text(2)) +
               "; expected settlement or royalties, complete or open";
      });
  impl_->require_none("SELECT log_id FROM runs WHERE log_id NOT IN (SELECT log_id FROM bookings)",
                      [](const Statement& row) {
                        return "nothing is booked of log " + quote_text(row.text(0)) +
                               ", which 'runs' names; expected a booking";
                      });
  impl_->require_none(
      "SELECT log_id, kind, sum(micro) FROM lines JOIN bookings ON bookings.id = booking "
      "GROUP BY booking HAVING sum(micro) != 0",
      [](const Statement& row) {
        return "the lines of " + row.text(1) + " of log " + row.text(0) + " sum to " +
               std::to_string(row.integer(2)) + "; expected 0";
      });
  Statement rates(impl_->database, "SELECT sha256, text FROM rates");
  while (rates.next()) {
    if (sha256_of_text(rates.text(1)) == rates.text(0)) continue;
    throw Error(ErrorKind::kBadFile, impl_->database.path() + ": the rates " +
                                         short_hash(rates.text(0)) +
                                         " have another text than their SHA-256; expected the "
                                         "file that was booked at");
  }
}

}  // namespace vitrine
