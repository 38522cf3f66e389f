// The ledger's file: SQLite, one transaction a booking, so that a failure leaves what was there.
#include <sqlite3.h>

#include <filesystem>

#include "vitrine/ledger.h"

namespace vitrine {
namespace {

constexpr int kApplicationId = 0x5674724c;  // "VtrL"
constexpr int kVersion = 1;

constexpr const char* kTables = R"(
  CREATE TABLE runs (
    log_id TEXT PRIMARY KEY, path TEXT NOT NULL, model TEXT NOT NULL, device TEXT NOT NULL,
    engine TEXT NOT NULL, proof TEXT NOT NULL, sealed_by TEXT NOT NULL, seal TEXT NOT NULL,
    started_unix_ns INTEGER NOT NULL, closed_unix_ns INTEGER NOT NULL,
    tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL,
    log_bytes INTEGER NOT NULL, device_us INTEGER NOT NULL) STRICT;
  CREATE TABLE rates (sha256 TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
  CREATE TABLE bookings (
    id INTEGER PRIMARY KEY, log_id TEXT NOT NULL REFERENCES runs, kind TEXT NOT NULL,
    currency TEXT NOT NULL, rates_sha256 TEXT NOT NULL REFERENCES rates,
    UNIQUE (log_id, kind)) STRICT;
  CREATE TABLE lines (
    id INTEGER PRIMARY KEY, booking INTEGER NOT NULL REFERENCES bookings,
    account TEXT NOT NULL, micro INTEGER NOT NULL, memo TEXT NOT NULL) STRICT;
  CREATE INDEX lines_of ON lines (booking);
)";

/// A file and its connection.
class Database {
 public:
  Database(const std::string& path, int flags) : path_(path) {
    const int code = sqlite3_open_v2(path.c_str(), &handle_, flags, nullptr);
    if (code != SQLITE_OK) {
      const std::string why = handle_ != nullptr ? sqlite3_errmsg(handle_) : "out of memory";
      sqlite3_close(handle_);
      throw Error(ErrorKind::kIo, path_ + ": can't be opened: " + why);
    }
    sqlite3_extended_result_codes(handle_, 1);
    sqlite3_busy_timeout(handle_, 10'000);
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database() { sqlite3_close(handle_); }

  const std::string& path() const { return path_; }
  sqlite3* handle() const { return handle_; }
  [[noreturn]] void fail(const std::string& what) const {
    const int code = sqlite3_errcode(handle_) & 0xff;
    const bool is_bad = code == SQLITE_NOTADB || code == SQLITE_CORRUPT;
    throw Error(is_bad ? ErrorKind::kBadFile : ErrorKind::kIo,
                path_ + ": " + what + ": " + sqlite3_errmsg(handle_) +
                    (is_bad ? "; expected a ledger that 'vitrine ledger' made" : ""));
  }
  void run(const char* sql, const std::string& what) const {
    if (sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail(what);
  }

 private:
  std::string path_;
  sqlite3* handle_ = nullptr;
};

/// A prepared statement: bind, then next() row by row.
class Statement {
 public:
  Statement(const Database& database, const char* sql) : database_(database) {
    if (sqlite3_prepare_v2(database.handle(), sql, -1, &handle_, nullptr) != SQLITE_OK) {
      database_.fail("can't be read");
    }
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { sqlite3_finalize(handle_); }

  Statement& bind(const std::string& value) {
    sqlite3_bind_text(handle_, ++bound_, value.data(), static_cast<int>(value.size()),
                      SQLITE_TRANSIENT);
    return *this;
  }
  Statement& bind(int64_t value) {
    sqlite3_bind_int64(handle_, ++bound_, value);
    return *this;
  }
  bool next() {
    const int code = sqlite3_step(handle_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) database_.fail("can't be used");
    return code == SQLITE_ROW;
  }
  std::string text(int column) const {
    const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
    const auto size = static_cast<size_t>(sqlite3_column_bytes(handle_, column));
    return value != nullptr ? std::string(value, size) : std::string();
  }
  int64_t integer(int column) const { return sqlite3_column_int64(handle_, column); }

 private:
  const Database& database_;
  sqlite3_stmt* handle_ = nullptr;
  int bound_ = 0;
};

/// Undone unless it was committed.
class Transaction {
 public:
  explicit Transaction(const Database& database) : database_(database) {
    database_.run("BEGIN IMMEDIATE", "can't be locked for writing");
  }
  ~Transaction() {
    if (!is_done_) sqlite3_exec(database_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    database_.run("COMMIT", "can't be written");
    is_done_ = true;
  }

 private:
  const Database& database_;
  bool is_done_ = false;
};

int64_t pragma(const Database& database, const char* sql) {
  Statement statement(database, sql);
  return statement.next() ? statement.integer(0) : 0;
}

}  // namespace

std::string_view booking_kind_name(BookingKind kind) {
  return kind == BookingKind::kSettlement ? "settlement" : "royalties";
}

struct Ledger::Impl {
  Impl(const std::string& path, int flags) : database(path, flags) {}
  Database database;

  void check_kind_of_file() const {
    const int64_t id = pragma(database, "PRAGMA application_id");
    const int64_t version = pragma(database, "PRAGMA user_version");
    if (id == kApplicationId && version == kVersion) return;
    throw Error(ErrorKind::kBadFile,
                database.path() + ": is " +
                    (id == kApplicationId ? "a ledger of version " + std::to_string(version)
                                          : std::string("a database of another program")) +
                    "; expected a ledger of version " + std::to_string(kVersion));
  }

  void make_tables() const {
    Transaction transaction(database);
    if (pragma(database, "SELECT count(*) FROM sqlite_schema") != 0) return;  // made meanwhile
    database.run(kTables, "can't be written");
    database.run(("PRAGMA application_id = " + std::to_string(kApplicationId)).c_str(),
                 "can't be written");
    database.run(("PRAGMA user_version = " + std::to_string(kVersion)).c_str(), "can't be written");
    transaction.commit();
  }

  void add(const Item& item) const {
    const RunAccount& run = item.run;
    Statement(database,
              "INSERT INTO runs VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO NOTHING")
        .bind(run.log_id)
        .bind(run.path)
        .bind(run.model)
        .bind(run.device)
        .bind(run.engine_build)
        .bind(run.proof)
        .bind(run.sealed_by)
        .bind(std::string(seal_name(run.seal)))
        .bind(static_cast<int64_t>(run.started_unix_ns))
        .bind(static_cast<int64_t>(run.closed_unix_ns))
        .bind(run.tokens_in)
        .bind(run.tokens_out)
        .bind(run.log_bytes)
        .bind(run.device_us)
        .next();
    Statement(database, "INSERT INTO rates VALUES (?,?) ON CONFLICT DO NOTHING")
        .bind(item.rates.sha256())
        .bind(item.rates.text())
        .next();
    Statement(database,
              "INSERT INTO bookings (log_id, kind, currency, rates_sha256) VALUES (?,?,?,?)")
        .bind(run.log_id)
        .bind(std::string(booking_kind_name(item.booking.kind)))
        .bind(item.booking.currency)
        .bind(item.booking.rates_sha256)
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
};

Ledger::Ledger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;
Ledger::~Ledger() = default;

Ledger Ledger::open(const std::string& path) {
  auto impl = std::make_unique<Impl>(path, SQLITE_OPEN_READWRITE);
  impl->check_kind_of_file();
  return Ledger(std::move(impl));
}

Ledger Ledger::open_or_create(const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && std::filesystem::file_size(path, error) > 0) {
    return open(path);
  }
  auto impl = std::make_unique<Impl>(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  impl->make_tables();
  impl->check_kind_of_file();
  return Ledger(std::move(impl));
}

std::vector<bool> Ledger::book(std::span<const Item> items) {
  Transaction transaction(impl_->database);
  std::vector<bool> added;
  for (const Item& item : items) {
    const std::optional<Booking> there = find(item.run.log_id, item.booking.kind);
    added.push_back(!there.has_value());
    if (!there.has_value()) {
      impl_->add(item);
    } else if (there->rates_sha256 != item.booking.rates_sha256) {
      throw Error(ErrorKind::kInvalidArgument,
                  item.run.path + ": its " + std::string(booking_kind_name(item.booking.kind)) +
                      " is booked in " + impl_->database.path() + " at other rates (" +
                      there->rates_sha256.substr(0, 12) + "…); expected those, or another ledger");
    }
  }
  transaction.commit();
  return added;
}

std::optional<Booking> Ledger::find(const std::string& log_id, BookingKind kind) const {
  Statement head(impl_->database,
                 "SELECT id, currency, rates_sha256 FROM bookings WHERE log_id = ? AND kind = ?");
  head.bind(log_id).bind(std::string(booking_kind_name(kind)));
  if (!head.next()) return std::nullopt;
  Booking booking{log_id, kind, head.text(1), head.text(2), {}};
  Statement lines(impl_->database,
                  "SELECT account, micro, memo FROM lines WHERE booking = ? ORDER BY id");
  lines.bind(head.integer(0));
  while (lines.next()) booking.lines.push_back({lines.text(0), lines.integer(1), lines.text(2)});
  return booking;
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
  Statement sums(impl_->database,
                 "SELECT log_id, kind, sum(micro) FROM lines JOIN bookings "
                 "ON bookings.id = booking GROUP BY booking HAVING sum(micro) != 0");
  if (!sums.next()) return;
  throw Error(ErrorKind::kBadFile, impl_->database.path() + ": the lines of " + sums.text(1) +
                                       " of log " + sums.text(0) + " sum to " +
                                       std::to_string(sums.integer(2)) + "; expected 0");
}

}  // namespace vitrine
