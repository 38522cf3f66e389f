// SPDX-License-Identifier: Apache-2.0
// A ledger that books all or nothing, and finds what was changed in it.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>

#include "tests/checkpoint/folders.h"
#include "tests/ledger/runs.h"
#include "vitrine/ledger.h"

namespace vitrine::testing {
namespace {

class LedgerFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "ledger.sqlite") const { return folder_ / name; }
  LedgerRates rates(int second) const {
    return LedgerRates::parse(head(R"("settlement":{"second":)" + std::to_string(second) + "}"),
                              "rates.json");
  }
  using Outcome = Ledger::Outcome;
  std::vector<Outcome> book(Ledger& ledger, const LedgerRates& rates,
                            const std::vector<RunAccount>& runs) const {
    std::vector<Booking> bookings;
    for (const RunAccount& run : runs) {
      bookings.push_back(rates.book(BookingKind::kSettlement, run));
    }
    std::vector<Ledger::Item> items;
    for (size_t i = 0; i < runs.size(); ++i) items.push_back({runs[i], bookings[i], rates});
    return ledger.book(items);
  }
  int64_t lines(const Ledger& ledger) const {
    int64_t count = 0;
    ledger.for_each([&](const Ledger::Entry&) { ++count; });
    return count;
  }
  void execute(const std::string& file, const char* sql) const {
    sqlite3* handle = nullptr;
    ASSERT_EQ(sqlite3_open(file.c_str(), &handle), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(handle, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(handle);
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(LedgerFile, BooksOnceAndAllOrNothing) {
  Ledger ledger = Ledger::open_or_create(path());
  EXPECT_EQ(book(ledger, rates(1000), {a_run("01"), a_run("02")}),
            (std::vector<Outcome>{Outcome::kAdded, Outcome::kAdded}));
  const int64_t before = lines(ledger);
  EXPECT_EQ(book(ledger, rates(1000), {a_run("02"), a_run("01")}),
            (std::vector<Outcome>{Outcome::kWasThere, Outcome::kWasThere}));
  EXPECT_EQ(lines(ledger), before);
  // A third run, together with one that is booked at other rates.
  const Error error = error_of([&] { book(ledger, rates(999), {a_run("03"), a_run("01")}); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"run-01.vtr", "other rates"})) << error.what();
  EXPECT_EQ(lines(ledger), before);
  EXPECT_FALSE(ledger.find("03", BookingKind::kSettlement).has_value());

  const Ledger again = Ledger::open(path());
  again.check();
  EXPECT_EQ(again.find("02", BookingKind::kSettlement)->booking.lines,
            rates(1000).book(BookingKind::kSettlement, a_run("02")).lines);
  ASSERT_EQ(again.balances().size(), 2u);
  EXPECT_EQ(again.balances()[0].account, "host");
  EXPECT_EQ(again.balances()[0].micro, -3000);
  EXPECT_EQ(again.balances()[1].micro, 3000);
}

TEST_F(LedgerFile, OnlyWhatTheRatesMakeIsBooked) {
  Ledger ledger = Ledger::open_or_create(path());
  const RunAccount run = a_run("01");
  const LedgerRates at = rates(1000);
  const Booking right = at.book(BookingKind::kSettlement, run);
  for (const bool is_there : {false, true}) {
    std::vector<Booking> wrong(5, right);
    wrong[0].lines.front().micro += 5;
    wrong[1].lines.clear();
    wrong[2].rates_sha256 = "00";
    wrong[3].currency = "ZZZ";
    wrong[4].log_id = "02";
    for (const Booking& booking : wrong) {
      const Ledger::Item item{run, booking, at};
      const Error error = error_of([&] { ledger.book({&item, 1}); });
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_TRUE(is_one_line_with(error, {"run-01.vtr", "settlement"})) << error.what();
    }
    const Ledger::Item item{run, right, at};
    EXPECT_EQ(ledger.book({&item, 1})[0], is_there ? Outcome::kWasThere : Outcome::kAdded);
  }
  ledger.check();
  EXPECT_EQ(error_of([&] { ledger.for_each({}); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_of([&] { export_parquet(ledger, path()); }).kind(), ErrorKind::kInvalidArgument);
  ledger.check();
}

TEST_F(LedgerFile, WhatIsNoLedgerIsRefusedAndLeftAlone) {
  const auto refused = [&](const std::string& name, const char* first, const char* second) {
    const Error error = error_of([&] { Ledger::open_or_create(path(name)); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << name;
    EXPECT_TRUE(is_one_line_with(error, {name, first, second})) << error.what();
  };
  std::ofstream(path("text")) << std::string(5000, 'x');
  refused("text", "not a database", "ledger");
  execute(path("other"), "CREATE TABLE t (a)");
  refused("other", "another program", "version 2");
  { Ledger::open_or_create(path("newer")); }
  execute(path("newer"), "PRAGMA user_version = 3");
  refused("newer", "version 3", "version 2");
  std::ofstream(path("empty")).flush();
  const Error empty = error_of([&] { Ledger::open(path("empty")); });
  EXPECT_TRUE(is_one_line_with(empty, {"empty", "an empty file", "version 2"})) << empty.what();
  EXPECT_EQ(error_of([&] { Ledger::open_or_create(""); }).kind(), ErrorKind::kInvalidArgument);
  const Error missing = error_of([&] { Ledger::open(path("missing")); });
  EXPECT_TRUE(is_one_line_with(missing, {"missing", "is not there"})) << missing.what();
  EXPECT_EQ(missing.kind(), ErrorKind::kInvalidArgument);
  const Error folder = error_of([&] { Ledger::open_or_create(path("no/such/folder")); });
  EXPECT_EQ(folder.kind(), ErrorKind::kIo);
}

// A host's account of a run: what no log has is refused before it is multiplied with a rate.
TEST_F(LedgerFile, CountsThatNoLogHasAreRefused) {
  for (const int64_t count : {int64_t{-1}, INT64_MIN, (int64_t{1} << 55) + 1, INT64_MAX}) {
    for (int64_t RunAccount::*field : {&RunAccount::tokens_in, &RunAccount::tokens_out,
                                       &RunAccount::log_bytes, &RunAccount::device_us}) {
      RunAccount run = a_run("01");
      run.*field = count;
      const Error error = error_of([&] { rates(1000).book(BookingKind::kSettlement, run); });
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_TRUE(is_one_line_with(error, {std::to_string(count), "expected 0 to"}))
          << error.what();
    }
  }
  RunAccount run = a_run("01");
  run.shares[ShareBasis::kResponsibility][{}] = -1;
  const Error error = error_of([&] { rates(1000).book(BookingKind::kSettlement, run); });
  EXPECT_TRUE(is_one_line_with(error, {"'shares'", "-1"})) << error.what();
}

TEST_F(LedgerFile, WhatWasReadStandsWithEachBooking) {
  Ledger ledger = Ledger::open_or_create(path());
  RunAccount whole = a_run("01"), open = a_run("01");
  whole.proof = "aa", open.proof = "bb";
  open.seal = VtrReport::Seal::kOpen;
  open.tokens_out = 2;
  const LedgerRates all = LedgerRates::parse(
      head(R"("settlement":{"mebibyte":9,"token_out":1},"basis":"gate_weight","royalties":[)" +
           group("[0,9]", "[0,9]") + "]"),
      "rates.json");
  const auto book_as = [&](BookingKind kind, const RunAccount& run) {
    const Booking booking = all.book(kind, run);
    return ledger.book(std::vector<Ledger::Item>{{run, booking, all}}).at(0);
  };
  const auto verdict = [&](BookingKind kind, const RunAccount& run) {
    return Ledger::compare(*ledger.find("01", kind), run, all);
  };
  using Verdict = Ledger::Comparison::Verdict;
  constexpr auto kSettlement = BookingKind::kSettlement, kRoyalties = BookingKind::kRoyalties;
  EXPECT_EQ(book_as(kSettlement, whole), Outcome::kAdded);
  EXPECT_EQ(book_as(kRoyalties, open), Outcome::kAdded);
  EXPECT_EQ(ledger.find("01", kSettlement)->run.proof, "aa");
  EXPECT_EQ(ledger.find("01", kRoyalties)->run.proof, "bb");
  EXPECT_EQ(ledger.find("01", kRoyalties)->run.seal, VtrReport::Seal::kOpen);
  EXPECT_EQ(verdict(kSettlement, whole).verdict, Verdict::kSame);
  EXPECT_NE(verdict(kRoyalties, whole).difference.find("seal"), std::string::npos);
  // An open log's lines make way for those of the complete one, and for nothing else.
  const Error error = error_of([&] { book_as(kSettlement, open); });
  EXPECT_TRUE(is_one_line_with(error, {"run-01.vtr", "other lines", "complete"})) << error.what();
  EXPECT_EQ(book_as(kRoyalties, whole), Outcome::kReplaced);
  EXPECT_EQ(book_as(kRoyalties, whole), Outcome::kWasThere);
  EXPECT_EQ(verdict(kRoyalties, whole).verdict, Verdict::kSame);
  // A copy is the same run; its own size is not what was booked.
  RunAccount copy = whole;
  copy.proof = "cc", copy.log_bytes = 1000;
  EXPECT_EQ(book_as(kSettlement, copy), Outcome::kWasThere);
  EXPECT_EQ(verdict(kSettlement, copy).verdict, Verdict::kCopy);
  copy.log_bytes = whole.log_bytes;
  EXPECT_NE(verdict(kSettlement, copy).difference.find("proof"), std::string::npos);
  ledger.check();
  int64_t sum = 0;
  for (const Ledger::Balance& balance : ledger.balances()) sum += balance.micro;
  EXPECT_EQ(sum, 0);
}

TEST_F(LedgerFile, EveryFactIsCompared) {
  const char* const changes[] = {"UPDATE runs SET model = 'x'",
                                 "UPDATE runs SET device = 'x'",
                                 "UPDATE runs SET engine = 'x'",
                                 "UPDATE runs SET started_unix_ns = 1",
                                 "UPDATE bookings SET currency = 'USD'",
                                 "UPDATE bookings SET rates_sha256 = 'x'",
                                 "UPDATE bookings SET proof = 'x'",
                                 "UPDATE bookings SET sealed_by = 'x'",
                                 "UPDATE bookings SET seal = 'open'",
                                 "UPDATE bookings SET seal = 'x'",
                                 "UPDATE bookings SET closed_unix_ns = 1",
                                 "UPDATE bookings SET tokens_in = 1",
                                 "UPDATE bookings SET tokens_out = 1",
                                 "UPDATE bookings SET log_bytes = 1",
                                 "UPDATE bookings SET device_us = 1",
                                 "UPDATE bookings SET kind = 'royalties'",
                                 "UPDATE bookings SET kind = 'x'",
                                 "DELETE FROM bookings",
                                 "DELETE FROM runs",
                                 "DELETE FROM rates",
                                 "UPDATE rates SET text = '{}'",
                                 "DELETE FROM lines",
                                 "UPDATE lines SET account = 'x'",
                                 "UPDATE lines SET memo = 'x'",
                                 "DELETE FROM lines; DELETE FROM bookings",
                                 "INSERT INTO lines VALUES (NULL, 99, 'x', 0, '')"};
  const RunAccount run = a_run("01");
  for (const char* change : changes) {
    std::filesystem::remove(path());
    {
      Ledger ledger = Ledger::open_or_create(path());
      book(ledger, rates(1000), {run});
      ledger.check();
    }
    execute(path(), change);
    const Ledger ledger = Ledger::open(path());
    bool is_found = false;
    try {
      ledger.check();
      const auto booked = ledger.find("01", BookingKind::kSettlement);
      is_found = !booked.has_value() || Ledger::compare(*booked, run, rates(1000)).verdict !=
                                            Ledger::Comparison::Verdict::kSame;
    } catch (const Error& error) {
      is_found = error.kind() == ErrorKind::kBadFile;
      EXPECT_TRUE(is_one_line_with(error, {"ledger.sqlite", "expected"})) << error.what();
    }
    EXPECT_TRUE(is_found) << change;
  }
}

TEST_F(LedgerFile, ALedgerOfVersion1IsBroughtUpToDate) {
  execute(path(), R"(
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
    INSERT INTO runs VALUES ('01','run-01.vtr','m','cpu','e','aa','','complete',3,4,5,6,7,8);
    INSERT INTO bookings VALUES (1,'01','settlement','EUR',
      'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');
    INSERT INTO rates VALUES (
      'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855','');
    INSERT INTO lines VALUES (1,1,'host',-3,'settlement'),(2,1,'us',3,'x');
    PRAGMA application_id = 1450472012;
    PRAGMA user_version = 1;)");
  for (int time = 0; time < 2; ++time) {
    Ledger ledger = Ledger::open_or_create(path());
    ledger.check();
    const auto booked = ledger.find("01", BookingKind::kSettlement);
    ASSERT_TRUE(booked.has_value());
    EXPECT_EQ(booked->run.path, "run-01.vtr");
    EXPECT_EQ(booked->run.proof, "aa");
    EXPECT_EQ(booked->run.started_unix_ns, 3u);
    EXPECT_EQ(booked->run.device_us, 8);
    EXPECT_EQ(booked->booking.lines.size(), 2u);
    if (time == 0) book(ledger, rates(1000), {a_run("02")});
  }
}

TEST_F(LedgerFile, WhatAKilledProcessBeganIsUndone) {
  // A transaction that was under way, its journal beside it: nothing was booked yet.
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path("begun").c_str(), &handle), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(handle,
                         "PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN IMMEDIATE; "
                         "CREATE TABLE t (a); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT "
                         "i + 1 FROM n WHERE i < 200) INSERT INTO t SELECT zeroblob(900) FROM n",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  for (const char* end : {"", "-journal"}) {
    std::filesystem::copy_file(path("begun") + end, path(std::string("ledger.sqlite") + end));
  }
  sqlite3_close(handle);
  ASSERT_GT(std::filesystem::file_size(path()), 0u);
  Ledger ledger = Ledger::open_or_create(path());
  EXPECT_EQ(book(ledger, rates(1000), {a_run("01")}), std::vector<Outcome>{Outcome::kAdded});
}

TEST_F(LedgerFile, AChangedAmountIsFound) {
  Ledger ledger = Ledger::open_or_create(path());
  book(ledger, rates(1000), {a_run("01")});
  execute(path(), "UPDATE lines SET micro = micro + 1 WHERE id = 2");
  const Error error = error_of([&] { ledger.check(); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {"settlement", "01", "sum to 1", "expected 0"}))
      << error.what();
}

TEST_F(LedgerFile, CsvQuotesWhatItMust) {
  Ledger ledger = Ledger::open_or_create(path());
  RunAccount run = a_run("01");
  run.path = "a \"run\", with\nall.vtr";
  book(ledger, rates(1), {run});
  const std::string csv = csv_of(ledger);
  EXPECT_NE(csv.find("01,\"a \"\"run\"\", with\nall.vtr\",,"), std::string::npos) << csv;
  EXPECT_EQ(csv.substr(0, 11), "log_id,run,");
}

}  // namespace
}  // namespace vitrine::testing
