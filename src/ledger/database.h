// SPDX-License-Identifier: Apache-2.0
// Private to the room: a SQLite file, statements and transactions.
#pragma once

#include <sqlite3.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "vitrine/core.h"

namespace vitrine::ledger {

/// A file and its connection.
class Database {
 public:
  Database(const std::string& path, int flags) : path_(path) {
    if (path.empty()) {
      throw Error(ErrorKind::kInvalidArgument, "a ledger's path is empty; expected that of a file");
    }
    // SQLite takes ":memory:" and "file:…" for something else than a file of that name.
    const std::string file = path[0] == '/' ? path : "./" + path;
    std::error_code error;
    if ((flags & SQLITE_OPEN_CREATE) == 0 && !std::filesystem::exists(file, error) && !error) {
      throw Error(ErrorKind::kInvalidArgument,
                  "ledger '" + path + "' is not there; expected one that 'vitrine ledger' made");
    }
    const int code = sqlite3_open_v2(file.c_str(), &handle_, flags, nullptr);
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
  /// The last failure was that another process writes.
  bool is_busy() const { return is_busy_; }
  [[noreturn]] void fail(const std::string& what) const {
    const int code = sqlite3_errcode(handle_) & 0xff;
    is_busy_ = code == SQLITE_BUSY;
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
  mutable bool is_busy_ = false;
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
  explicit Transaction(const Database& database,
                       const std::string& why = "can't be locked for writing")
      : database_(database) {
    database_.run("BEGIN IMMEDIATE", why);
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

/// The first number that a query gives; 0 where it gives none.
inline int64_t first_integer(const Database& database, const char* sql) {
  Statement statement(database, sql);
  return statement.next() ? statement.integer(0) : 0;
}

}  // namespace vitrine::ledger
