// SPDX-License-Identifier: Apache-2.0
#include "tables.h"

namespace vitrine::ledger {
namespace {

constexpr int kApplicationId = 0x5674724c;  // "VtrL"
constexpr int kVersion = 2;

// A run's head is one; what was read of its log stands with each booking, since copies differ.
const std::string kRunColumns = R"((
    log_id TEXT PRIMARY KEY, model TEXT NOT NULL, device TEXT NOT NULL, engine TEXT NOT NULL,
    started_unix_ns INTEGER NOT NULL) STRICT;
)";
const std::string kBookingColumns = R"((
    id INTEGER PRIMARY KEY, log_id TEXT NOT NULL REFERENCES runs, kind TEXT NOT NULL,
    currency TEXT NOT NULL, rates_sha256 TEXT NOT NULL REFERENCES rates,
    path TEXT NOT NULL, proof TEXT NOT NULL, sealed_by TEXT NOT NULL, seal TEXT NOT NULL,
    closed_unix_ns INTEGER NOT NULL, tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL,
    log_bytes INTEGER NOT NULL, device_us INTEGER NOT NULL, UNIQUE (log_id, kind)) STRICT;
)";
constexpr const char* kOtherTables = R"(
  CREATE TABLE rates (sha256 TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT;
  CREATE TABLE lines (
    id INTEGER PRIMARY KEY, booking INTEGER NOT NULL REFERENCES bookings,
    account TEXT NOT NULL, micro INTEGER NOT NULL, memo TEXT NOT NULL) STRICT;
  CREATE INDEX lines_of ON lines (booking);
)";

// Version 1 had what was read of a log in `runs`, once for all bookings.
constexpr const char* kFromVersion1 = R"(
  INSERT INTO new_runs SELECT log_id, model, device, engine, started_unix_ns FROM runs;
  INSERT INTO new_bookings
    SELECT id, log_id, kind, currency, rates_sha256, path, proof, sealed_by, seal, closed_unix_ns,
           tokens_in, tokens_out, log_bytes, device_us FROM bookings JOIN runs USING (log_id);
  DROP TABLE bookings;
  DROP TABLE runs;
  ALTER TABLE new_runs RENAME TO runs;
  ALTER TABLE new_bookings RENAME TO bookings;
)";

void run_all(const Database& database, const std::string& sql, const char* why) {
  database.run((sql + "PRAGMA user_version = " + std::to_string(kVersion)).c_str(), why);
}

int64_t application_id(const Database& database) {
  return first_integer(database, "PRAGMA application_id");
}
int64_t version(const Database& database) { return first_integer(database, "PRAGMA user_version"); }

bool is_empty(const Database& database) {
  return application_id(database) == 0 && version(database) == 0 &&
         first_integer(database, "SELECT count(*) FROM sqlite_schema") == 0;
}

}  // namespace

void make_tables(const Database& database) {
  // The lock first: it undoes what a process that was killed had begun.
  Transaction transaction(database);
  if (!is_empty(database)) return;
  run_all(database,
          "CREATE TABLE runs " + kRunColumns + "CREATE TABLE bookings " + kBookingColumns +
              kOtherTables + "PRAGMA application_id = " + std::to_string(kApplicationId) + ";",
          "can't be written");
  transaction.commit();
}

void bring_up_to_date(const Database& database) {
  const int64_t id = application_id(database);
  if (id != kApplicationId || version(database) < 1 || version(database) > kVersion) {
    const std::string found = id == kApplicationId
                                  ? "a ledger of version " + std::to_string(version(database))
                              : is_empty(database) ? std::string("an empty file")
                                                   : std::string("a database of another program");
    throw Error(ErrorKind::kBadFile, database.path() + ": is " + found +
                                         "; expected a ledger of version " +
                                         std::to_string(kVersion) + " or older");
  }
  if (version(database) == kVersion) return;
  constexpr const char* kWhy = "is a ledger of version 1 and can't be brought up to date";
  Transaction transaction(database, kWhy);
  if (version(database) == kVersion) return;  // another process was first
  run_all(database,
          "CREATE TABLE new_runs " + kRunColumns + "CREATE TABLE new_bookings " + kBookingColumns +
              kFromVersion1,
          kWhy);
  transaction.commit();
}

}  // namespace vitrine::ledger
