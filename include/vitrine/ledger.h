// SPDX-License-Identifier: Apache-2.0
// The room `ledger`: what an inference cost and who earned by it, booked from sealed logs.
//
//     const LedgerRates rates = LedgerRates::load("rates.json");
//     const RunAccount run = read_run_account("run.vtr", {});
//     Ledger ledger = Ledger::open_or_create("ledger.sqlite");
//     ledger.book({{run, rates.book(BookingKind::kRoyalties, run)}});
//
// Everything in a booking follows from the log and the rates alone, in integers: whoever has both
// comes to the same numbers (docs/ledger.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/audit_log.h"

namespace vitrine {

/// A token's shares are counted in units and sum to exactly this.
inline constexpr int64_t kShareUnits = 1'000'000'000;

/// What a token is shared out by.
enum class ShareBasis : uint8_t {
  kResponsibility,  ///< of a federation's specialists, as the log has it
  kAttribution,     ///< of experts: the positive terms of the token's logit that they made
  kGateWeight,      ///< of experts: their gate weights, all layers alike
};
/// Returns "responsibility", "attribution" or "gate_weight".
VITRINE_API std::string_view share_basis_name(ShareBasis basis);

/// Who can earn by a token: a specialist of a federation, or an expert of a layer.
struct Contributor {
  std::string specialist;  ///< empty: an expert
  int32_t layer = -1;      ///< of an expert
  int32_t expert = -1;     ///< of an expert
  auto operator<=>(const Contributor&) const = default;
};

/// What a log says of one inference; read once, booked as often as there are rates.
struct RunAccount {
  std::string path;       ///< of the log, as it was given
  std::string log_id;     ///< 32 hexadecimal digits: of the run, whatever was left out of a copy
  std::string proof;      ///< SHA-256 of the file
  std::string sealed_by;  ///< public key that seals it; empty: a key of the log's own
  VtrReport::Seal seal = VtrReport::Seal::kComplete;  ///< what the seal is worth
  std::string model;                                  ///< as the log's head names it
  std::string device;                                 ///< as the log's head names it
  std::string engine_build;                           ///< as the log's head names it
  uint64_t started_unix_ns = 0;                       ///< by the system's clock
  uint64_t closed_unix_ns = 0;                        ///< by the system's clock
  int64_t tokens_in = 0;   ///< read and not generated before; what candidates or attempts at an
                           ///< answer share counts once
  int64_t tokens_out = 0;  ///< generated
  int64_t log_bytes = 0;   ///< of the file that was read: a copy with columns left out is smaller
  bool is_whole = true;    ///< no column was left out
  int64_t device_us = 0;   ///< from the log's beginning to its end, in microseconds
  std::vector<std::string> specialists;  ///< of a federation, in its order
  /// Units of kShareUnits a token, over all generated tokens, by contributor; no entry for a basis
  /// that the log does not have. `unshared`: the units of tokens in which no contributor had a
  /// part.
  std::map<ShareBasis, std::map<Contributor, int64_t>> shares;
  std::map<ShareBasis, int64_t> unshared;  ///< see `shares`
};

/// How a log is read.
struct RunOptions {
  /// The key that must have sealed it; without one the log vouches for itself.
  std::optional<PublicKey> key = {};
  std::optional<SealKey> reader = {};  ///< opens an encrypted log
  bool allow_incomplete = false;       ///< an open log too, as far as it goes
};

/// Reads and verifies a `.vtr`. Throws kBadFile for a log that is broken, sealed by another key, or
/// open without `allow_incomplete`; kUnsupported for one whose level keeps no tokens or whose
/// records were left out; and what VtrReader throws. Thread-safe.
VITRINE_API RunAccount read_run_account(const std::string& path, const RunOptions& options = {});

/// Returns the id of a log's run, from its head, which nobody has to decrypt. Throws what VtrReader
/// throws.
VITRINE_API std::string read_log_id(const std::string& path);

/// What is booked: what a run costs, or what its contributors earn by it.
enum class BookingKind : uint8_t { kSettlement, kRoyalties };
/// Returns "settlement" or "royalties".
VITRINE_API std::string_view booking_kind_name(BookingKind kind);

/// One line of a booking. Amounts are millionths of the currency's unit; positive: the account is
/// owed, negative: it owes. A booking's lines sum to zero.
struct LedgerLine {
  std::string account;  ///< whom it is about
  int64_t micro = 0;    ///< millionths of the currency's unit
  std::string memo;     ///< what it is for
  bool operator==(const LedgerLine&) const = default;
};

/// The lines of one kind for one run at one set of rates, as LedgerRates::book makes them.
struct Booking {
  std::string log_id;                           ///< of the run
  BookingKind kind = BookingKind::kSettlement;  ///< what is booked
  std::string currency;                         ///< of the amounts
  std::string rates_sha256;                     ///< of the rates' text
  std::vector<LedgerLine> lines;                ///< in the order in which they were made
  bool operator==(const Booking&) const = default;
};

/// What is paid for what; a JSON file (docs/ledger.md).
class VITRINE_API LedgerRates {
 public:
  /// Throws kIo, kBadFile (file, field, what was expected): for negative rates, two rates for one
  /// contributor at one time, a period that ends before it begins, a key that is unknown.
  static LedgerRates load(const std::string& path);
  /// Reads rates from text; `name` stands for the file in messages.
  static LedgerRates parse(std::string_view json, const std::string& name);

  /// Returns the lines of a run. Throws kInvalidArgument where a contributor of the run has no
  /// rate, where the run lacks what the rates are based on, for counts below 0 or that no log has,
  /// and for sums above 2^62 millionths.
  Booking book(BookingKind kind, const RunAccount& run) const;
  /// Returns true where there are rates for this kind.
  bool has(BookingKind kind) const;

  /// Returns the file's text.
  const std::string& text() const;
  /// Returns that text's hash, 64 hexadecimal digits.
  const std::string& sha256() const;
  /// Returns the currency that amounts are in.
  const std::string& currency() const;

  struct Impl;

 private:
  explicit LedgerRates(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// A ledger: one SQLite file. Not thread-safe.
class VITRINE_API Ledger {
 public:
  /// Opens a ledger; one of an older version is brought up to date. Throws kInvalidArgument for an
  /// empty path, kIo, and kBadFile for a file that is no ledger of ours.
  static Ledger open(const std::string& path);
  /// Makes an empty ledger where there is no file. Throws as open() does.
  static Ledger open_or_create(const std::string& path);
  /// Returns the path of the file.
  const std::string& path() const;
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;
  ~Ledger();

  /// One of the bookings that book() makes together, or not at all.
  struct Item {
    const RunAccount& run;     ///< whose lines they are
    const Booking& booking;    ///< what LedgerRates::book made
    const LedgerRates& rates;  ///< what it was made with
  };
  /// What became of an item.
  enum class Outcome : uint8_t {
    kAdded,
    kWasThere,  ///< at these rates; nothing was changed
    kReplaced   ///< what was there was of the run's log while it was open; this one is complete
  };
  /// Books each item that is not there yet. A run and kind that is there with the same lines stays
  /// as it is, from whichever copy of the log it was booked. Throws kInvalidArgument for a booking
  /// that the item's rates do not make of its run, and for one that is there at other rates, in
  /// another currency or with other lines, unless a complete log takes the place of an open one;
  /// then nothing was booked.
  std::vector<Outcome> book(std::span<const Item> items);

  /// What is booked, with what was read of the log: `run` has no shares.
  struct Booked {
    int64_t id = 0;   ///< in the ledger
    Booking booking;  ///< its lines
    RunAccount run;   ///< as the log was read then
  };
  /// Returns what is booked of a run and kind; nothing where nothing is.
  std::optional<Booked> find(const std::string& log_id, BookingKind kind) const;

  /// How what is booked compares with what a log of the run and the rates make now.
  struct Comparison {
    /// How the two stand to each other.
    enum class Verdict : uint8_t {
      kSame,  ///< booked from this very file, and every fact and line is as it makes them
      kCopy,  ///< booked from another file of the run; all but that file's size and hash is so
      kOther  ///< something else is booked: `difference` says what
    } verdict = Verdict::kSame;  ///< how they stand to each other
    std::string difference;      ///< kOther: what differs
  };
  /// Compares what is booked with what a log of the run and the rates make now. Throws what
  /// LedgerRates::book throws.
  static Comparison compare(const Booked& booked, const RunAccount& run, const LedgerRates& rates);

  /// What an account is owed.
  struct Balance {
    std::string account;   ///< whose
    std::string currency;  ///< of the amount
    int64_t micro = 0;     ///< millionths of the currency's unit
  };
  /// Returns all balances, by currency, then account.
  std::vector<Balance> balances() const;

  /// A line with what it belongs to.
  struct Entry {
    std::string log_id;           ///< RunAccount::log_id
    std::string run;              ///< RunAccount::path
    std::string model;            ///< RunAccount::model
    std::string proof;            ///< RunAccount::proof
    std::string sealed_by;        ///< RunAccount::sealed_by
    std::string seal;             ///< seal_name()
    std::string kind;             ///< booking_kind_name()
    std::string currency;         ///< Booking::currency
    std::string rates_sha256;     ///< Booking::rates_sha256
    uint64_t closed_unix_ns = 0;  ///< by the system's clock
    int64_t tokens_in = 0;        ///< RunAccount::tokens_in
    int64_t tokens_out = 0;       ///< RunAccount::tokens_out
    int64_t log_bytes = 0;        ///< RunAccount::log_bytes
    int64_t device_us = 0;        ///< RunAccount::device_us
    LedgerLine line;              ///< the line itself
  };
  /// Calls `use` with all lines, in the order in which they were booked.
  void for_each(const std::function<void(const Entry&)>& use) const;
  /// Checks the whole ledger. Throws kBadFile where lines of a booking do not sum to zero,
  /// something belongs to nothing, the text of rates is not that of their hash, or SQLite finds
  /// damage.
  void check() const;

 private:
  struct Impl;
  explicit Ledger(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns all lines as CSV (RFC 4180, a header first); docs/ledger.md has the columns.
VITRINE_API std::string csv_of(const Ledger& ledger);
/// Writes all lines to a Parquet file, which appears whole or not at all. Throws kIo, and
/// kUnavailable where libvitrine_parquet.so is missing, and kInvalidArgument for the ledger's own
/// path.
VITRINE_API void export_parquet(const Ledger& ledger, const std::string& path);

}  // namespace vitrine
