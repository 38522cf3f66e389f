// SPDX-License-Identifier: Apache-2.0
// What is paid for what, from a JSON file, and the lines that follow from it for a run.

#include <algorithm>
#include <initializer_list>

#include "core/json_text.h"
#include "rounding.h"
#include "vitrine/checkpoint.h"
#include "vitrine/ledger.h"

namespace vitrine {
namespace {

using ledger::Wide;
using nlohmann::json;

constexpr int64_t kMaxRate = 1'000'000'000;
constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
constexpr uint64_t kForever = ~uint64_t{0};

/// Experts of a layer, ends included.
struct ExpertRange {
  int64_t first_layer, last_layer, first_expert, last_expert;
  bool holds(const Contributor& who) const {
    return who.layer >= first_layer && who.layer <= last_layer && who.expert >= first_expert &&
           who.expert <= last_expert;
  }
  bool meets(const ExpertRange& other) const {
    return first_layer <= other.last_layer && other.first_layer <= last_layer &&
           first_expert <= other.last_expert && other.first_expert <= last_expert;
  }
};

struct Royalty {
  std::string name;  // of the specialist or the group
  std::string account;
  int64_t token = 0;
  uint64_t from = 0, until = kForever;  // nanoseconds since 1970, `until` excluded
  std::vector<ExpertRange> experts;     // empty: a specialist

  bool earns_by(const Contributor& who) const {
    if (experts.empty()) return who.specialist == name;
    return who.specialist.empty() &&
           std::ranges::any_of(experts, [&](const ExpertRange& range) { return range.holds(who); });
  }
};

/// The fields of one object; every message names the file and where in it.
class Fields {
 public:
  Fields(const json& object, std::string file, std::string where)
      : object_(object), file_(std::move(file)), where_(std::move(where)) {
    if (!object_.is_object()) fail("", "is " + found_text(object_) + "; expected an object");
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    const std::string path = key.empty() ? where_ : where_.empty() ? key : where_ + "." + key;
    throw Error(ErrorKind::kBadFile,
                file_ + ": " + (path.empty() ? "the file" : quote_text(path)) + " " + what);
  }
  void allow(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(keys, key) != keys.end()) continue;
      std::string all;
      for (const std::string_view one : keys) all += (all.empty() ? "" : ", ") + std::string(one);
      fail(key, "is unknown; expected one of " + all);
    }
  }
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  std::string text(const char* key) const {
    const json* value = find(key);
    if (value == nullptr || !value->is_string() || value->get<std::string>().empty()) {
      fail(key, "is " + (value == nullptr ? "missing" : found_text(*value)) +
                    "; expected a text that is not empty");
    }
    return value->get<std::string>();
  }
  int64_t amount(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return 0;
    return whole(*value, key, kMaxRate, "millionths of the currency's unit");
  }
  int64_t whole(const json& value, const std::string& key, int64_t most, const char* of) const {
    const bool is_whole = value.is_number_integer() &&
                          (value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t(most)
                                                      : value.get<int64_t>() >= 0);
    if (!is_whole || value.get<int64_t>() > most) {
      fail(key, "is " + found_text(value) + "; expected a whole number from 0 to " +
                    std::to_string(most) + ", " + of);
    }
    return value.get<int64_t>();
  }
  /// A day as "2026-11-22", its beginning in UTC.
  std::optional<uint64_t> day(const char* key) const;
  std::pair<int64_t, int64_t> range(const char* key) const {
    const json* value = find(key);
    if (value == nullptr || !value->is_array() || value->size() != 2) {
      fail(key, "is " + (value == nullptr ? "missing" : found_text(*value)) +
                    "; expected [first, last]");
    }
    constexpr int64_t kMax = 1 << 20;
    const int64_t first = whole((*value)[0], key, kMax, "the first of a range");
    const int64_t last = whole((*value)[1], key, kMax, "the last of a range");
    if (first > last) fail(key, "is " + found_text(*value) + "; expected first <= last");
    return {first, last};
  }
  Fields item(const json& value, const std::string& key, size_t index) const {
    return {value, file_,
            (where_.empty() ? key : where_ + "." + key) + "[" + std::to_string(index) + "]"};
  }

 private:
  const json& object_;
  std::string file_, where_;
};

std::optional<uint64_t> Fields::day(const char* key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::string text = value->is_string() ? value->get<std::string>() : "";
  const auto number = [&](size_t at, size_t size) {
    int total = 0;
    for (size_t i = at; i < at + size; ++i) {
      if (text[i] < '0' || text[i] > '9') return -1;
      total = 10 * total + (text[i] - '0');
    }
    return total;
  };
  const bool is_shaped = text.size() == 10 && text[4] == '-' && text[7] == '-';
  const int year = is_shaped ? number(0, 4) : -1;
  const int month = is_shaped ? number(5, 2) : -1;
  const int date = is_shaped ? number(8, 2) : -1;
  const bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
  const int days[] = {31, is_leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (year < 1970 || month < 1 || month > 12 || date < 1 || date > days[month - 1]) {
    fail(key, "is " + found_text(*value) + "; expected a day from 1970 on, as \"2026-11-22\"");
  }
  uint64_t count = static_cast<uint64_t>(date - 1);
  for (int y = 1970; y < year; ++y) {
    count += y % 4 == 0 && (y % 100 != 0 || y % 400 == 0) ? 366 : 365;
  }
  for (int m = 1; m < month; ++m) count += static_cast<uint64_t>(days[m - 1]);
  return count * 86'400 * 1'000'000'000;
}

std::string name_of(const Contributor& who) {
  if (!who.specialist.empty()) return "specialist '" + who.specialist + "'";
  return "expert " + std::to_string(who.expert) + " of layer " + std::to_string(who.layer);
}

/// Units as tokens with nine decimals.
std::string tokens_text(int64_t units) {
  std::string fraction = std::to_string(units % kShareUnits);
  fraction.insert(0, 9 - fraction.size(), '0');
  return std::to_string(units / kShareUnits) + "." + fraction;
}

}  // namespace

struct LedgerRates::Impl {
  std::string name, text, sha256, currency, payer, server;
  int64_t token_in = 0, token_out = 0, mebibyte = 0, second = 0;
  bool has_settlement = false, has_royalties = false;
  ShareBasis basis = ShareBasis::kGateWeight;
  std::vector<Royalty> royalties;

  void read_royalties(const json& list, const Fields& file);
  void check_overlaps(const Fields& file) const;
  std::vector<LedgerLine> settle(const RunAccount& run) const;
  std::vector<LedgerLine> pay_royalties(const RunAccount& run) const;
  const Royalty& rate_of(const Contributor& who, const RunAccount& run) const;
  std::vector<LedgerLine> finish(const std::vector<Wide>& amounts, Wide denominator,
                                 std::vector<LedgerLine> lines, const RunAccount& run,
                                 const std::string& memo) const;
};

void LedgerRates::Impl::read_royalties(const json& list, const Fields& file) {
  if (!list.is_array()) {
    file.fail("royalties", "is " + found_text(list) + "; expected an array of rates");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const Fields fields = file.item(list[i], "royalties", i);
    fields.allow({"specialist", "group", "experts", "account", "token", "from", "until"});
    Royalty royalty;
    const bool is_group = fields.find("experts") != nullptr;
    if (fields.find(is_group ? "specialist" : "group") != nullptr) {
      fields.fail(is_group ? "specialist" : "group",
                  is_group ? "stands beside 'experts'; expected one of the two"
                           : "stands without 'experts'; expected both, or a 'specialist'");
    }
    royalty.name = fields.text(is_group ? "group" : "specialist");
    royalty.account = fields.text("account");
    if (fields.find("token") == nullptr) fields.fail("token", "is missing; expected a rate");
    royalty.token = fields.amount("token");
    royalty.from = fields.day("from").value_or(0);
    royalty.until = fields.day("until").value_or(kForever);
    if (royalty.from >= royalty.until) fields.fail("until", "is not behind 'from'");
    if (is_group == (basis == ShareBasis::kResponsibility)) {
      fields.fail(is_group ? "experts" : "specialist",
                  "does not fit basis '" + std::string(share_basis_name(basis)) + "'; expected " +
                      (is_group ? "'specialist'" : "'group' and 'experts'"));
    }
    if (is_group) {
      const json& ranges = *fields.find("experts");
      if (!ranges.is_array() || ranges.empty()) {
        fields.fail("experts", "is " + found_text(ranges) + "; expected an array of ranges");
      }
      for (size_t k = 0; k < ranges.size(); ++k) {
        const Fields range = fields.item(ranges[k], "experts", k);
        range.allow({"layers", "experts"});
        const auto [first_layer, last_layer] = range.range("layers");
        const auto [first_expert, last_expert] = range.range("experts");
        royalty.experts.push_back({first_layer, last_layer, first_expert, last_expert});
      }
    }
    royalties.push_back(std::move(royalty));
  }
  check_overlaps(file);
}

void LedgerRates::Impl::check_overlaps(const Fields& file) const {
  for (size_t i = 0; i < royalties.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const Royalty &a = royalties[k], &b = royalties[i];
      if (a.from >= b.until || b.from >= a.until) continue;
      bool meets = a.experts.empty() && a.name == b.name;
      for (const ExpertRange& range : a.experts) {
        meets = meets || std::ranges::any_of(b.experts, [&](const ExpertRange& other) {
                  return range.meets(other);
                });
      }
      if (!meets) continue;
      file.fail("royalties[" + std::to_string(i) + "]",
                "overlaps royalties[" + std::to_string(k) + "]: '" + b.name + "' and '" + a.name +
                    "' earn by the same at the same time; expected one rate");
    }
  }
}

const Royalty& LedgerRates::Impl::rate_of(const Contributor& who, const RunAccount& run) const {
  for (const Royalty& royalty : royalties) {
    if (royalty.earns_by(who) && run.started_unix_ns >= royalty.from &&
        run.started_unix_ns < royalty.until) {
      return royalty;
    }
  }
  throw Error(ErrorKind::kInvalidArgument, name + ": 'royalties' has no rate for " + name_of(who) +
                                               " at the time of " + run.path +
                                               "; expected one (0 where nothing is owed)");
}

std::vector<LedgerLine> LedgerRates::Impl::finish(const std::vector<Wide>& amounts,
                                                  Wide denominator, std::vector<LedgerLine> lines,
                                                  const RunAccount& run,
                                                  const std::string& memo) const {
  Wide sum = 0;
  for (const Wide amount : amounts) sum += amount;
  if (sum / denominator >= Wide{1} << 62) {
    throw Error(ErrorKind::kInvalidArgument, name +
                                                 ": the rates make more than 2^62 millionths of " +
                                                 run.path + "; expected smaller ones");
  }
  const std::vector<int64_t> rounded = ledger::round_together(amounts, denominator);
  int64_t total = 0;
  for (size_t i = 0; i < lines.size(); ++i) total += lines[i].micro = rounded[i];
  lines.insert(lines.begin(), {payer, -total, memo});
  return lines;
}

std::vector<LedgerLine> LedgerRates::Impl::settle(const RunAccount& run) const {
  if (!has_settlement) {
    throw Error(ErrorKind::kInvalidArgument, name + ": 'settlement' is missing; expected rates");
  }
  constexpr Wide kSecond = 1'000'000, kMebibyte = 1 << 20;
  constexpr Wide kDenominator = kSecond * kMebibyte;
  const std::vector<Wide> amounts = {Wide{token_in} * run.tokens_in * kDenominator,
                                     Wide{token_out} * run.tokens_out * kDenominator,
                                     Wide{mebibyte} * run.log_bytes * kSecond,
                                     Wide{second} * run.device_us * kMebibyte};
  return finish(amounts, kDenominator,
                {{server, 0, std::to_string(run.tokens_in) + " tokens in"},
                 {server, 0, std::to_string(run.tokens_out) + " tokens out"},
                 {server, 0, std::to_string(run.log_bytes) + " bytes of log"},
                 {server, 0, std::to_string(run.device_us) + " microseconds"}},
                run, "settlement");
}

std::vector<LedgerLine> LedgerRates::Impl::pay_royalties(const RunAccount& run) const {
  if (!has_royalties) {
    throw Error(ErrorKind::kInvalidArgument,
                name + ": 'royalties' is missing; expected 'basis' and rates");
  }
  const auto found = run.shares.find(basis);
  if (found == run.shares.end() && run.tokens_out > 0) {
    const char* expected = "basis responsibility, or attribution and a log with --attribution";
    if (run.specialists.empty()) expected = "a log with it, or another basis";
    if (!run.specialists.empty() && basis == ShareBasis::kResponsibility) {
      expected = "a copy in which no position of it is redacted";
    }
    throw Error(ErrorKind::kInvalidArgument, run.path + ": does not tell '" +
                                                 std::string(share_basis_name(basis)) +
                                                 "' of all its tokens, which the rates of " + name +
                                                 " are based on; expected " + expected);
  }
  // By rate, in the file's order.
  std::map<size_t, int64_t> units;
  if (found != run.shares.end()) {
    for (const auto& [who, share] : found->second) {
      const Royalty& royalty = rate_of(who, run);  // asked of whoever the log names
      if (share > 0) units[static_cast<size_t>(&royalty - royalties.data())] += share;
    }
  }
  std::vector<Wide> amounts;
  std::vector<LedgerLine> lines;
  for (const auto& [index, share] : units) {
    amounts.push_back(Wide{royalties[index].token} * share);
    lines.push_back({royalties[index].account, 0,
                     royalties[index].name + ": " + tokens_text(share) + " tokens"});
  }
  const auto unshared = run.unshared.find(basis);
  const int64_t nobody = unshared == run.unshared.end() ? 0 : unshared->second;
  return finish(amounts, kShareUnits, std::move(lines), run,
                "royalties by " + std::string(share_basis_name(basis)) +
                    (nobody > 0 ? ", " + tokens_text(nobody) + " tokens of nobody" : ""));
}

LedgerRates::LedgerRates(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

LedgerRates LedgerRates::load(const std::string& path) {
  return parse(read_text_file(path, kMaxBytes), path);
}

LedgerRates LedgerRates::parse(std::string_view text, const std::string& name) {
  const json object = parse_json_object(text, name, 1 << 20);
  const Fields fields(object, name, "");
  fields.allow({"currency", "payer", "server", "settlement", "basis", "royalties"});
  auto impl = std::make_shared<Impl>();
  impl->name = name;
  impl->text = text;
  impl->sha256 = sha256_of_text(text);
  impl->currency = fields.text("currency");
  impl->payer = fields.text("payer");
  if (const json* settlement = fields.find("settlement")) {
    impl->server = fields.text("server");
    const Fields rates(*settlement, name, "settlement");
    rates.allow({"token_in", "token_out", "mebibyte", "second"});
    impl->has_settlement = true;
    impl->token_in = rates.amount("token_in");
    impl->token_out = rates.amount("token_out");
    impl->mebibyte = rates.amount("mebibyte");
    impl->second = rates.amount("second");
  }
  if (const json* royalties = fields.find("royalties")) {
    impl->has_royalties = true;
    const std::string basis = fields.text("basis");
    bool is_known = false;
    for (const ShareBasis one :
         {ShareBasis::kResponsibility, ShareBasis::kAttribution, ShareBasis::kGateWeight}) {
      if (basis != share_basis_name(one)) continue;
      impl->basis = one;
      is_known = true;
    }
    if (!is_known) {
      fields.fail("basis", "is " + quote_text(basis) +
                               "; expected responsibility, attribution or gate_weight");
    }
    impl->read_royalties(*royalties, fields);
  }
  return LedgerRates(std::move(impl));
}

namespace {

/// What no log has, and what would not fit the sums of products with rates.
void check_counts(const RunAccount& run) {
  const auto check = [&](const char* field, int64_t count, int bits = 55) {
    const int64_t most = int64_t{1} << bits;
    if (count >= 0 && count <= most) return;
    throw Error(ErrorKind::kInvalidArgument, run.path + ": field '" + field +
                                                 "' of its account is " + std::to_string(count) +
                                                 "; expected 0 to " + std::to_string(most));
  };
  check("tokens_in", run.tokens_in);
  check("tokens_out", run.tokens_out);
  check("log_bytes", run.log_bytes);
  check("device_us", run.device_us);
  for (const auto& [basis, shares] : run.shares) {
    for (const auto& [who, share] : shares) check("shares", share, 60);
  }
  for (const auto& [basis, share] : run.unshared) check("unshared", share, 60);
}

}  // namespace

Booking LedgerRates::book(BookingKind kind, const RunAccount& run) const {
  check_counts(run);
  return {run.log_id, kind, impl_->currency, impl_->sha256,
          kind == BookingKind::kSettlement ? impl_->settle(run) : impl_->pay_royalties(run)};
}

bool LedgerRates::has(BookingKind kind) const {
  return kind == BookingKind::kSettlement ? impl_->has_settlement : impl_->has_royalties;
}

const std::string& LedgerRates::text() const { return impl_->text; }
const std::string& LedgerRates::sha256() const { return impl_->sha256; }
const std::string& LedgerRates::currency() const { return impl_->currency; }

}  // namespace vitrine
