// SPDX-License-Identifier: Apache-2.0
// What a log says of one inference, in numbers that a booking needs.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/sha256.h"
#include "input_tokens.h"
#include "rounding.h"
#include "vitrine/checkpoint.h"
#include "vitrine/ledger.h"

namespace vitrine {
namespace {

using Shares = std::map<Contributor, int64_t>;

/// Who had a part in one token, and how large it was.
struct Contributions {
  ShareBasis basis;
  std::vector<Contributor> contributors;
  std::vector<double> weights;
  double nobodys = 0;  // a weight that no contributor has earned

  void add(Contributor contributor, double weight) {
    contributors.push_back(std::move(contributor));
    weights.push_back(weight);
  }
};

void add_token(const Contributions& token, RunAccount& run) {
  std::vector<double> weights = token.weights;
  if (token.nobodys > 0) weights.push_back(token.nobodys);
  const std::vector<int64_t> units = ledger::share_units(weights);
  Shares& shares = run.shares[token.basis];
  int64_t given = 0;
  for (size_t i = 0; i < token.contributors.size(); ++i) {
    shares[token.contributors[i]] += units[i];
    given += units[i];
  }
  run.unshared[token.basis] += kShareUnits - given;
}

/// A weight that cannot be used (negative, infinite, no number) counts as none.
double usable(double weight) { return std::isfinite(weight) && weight > 0 ? weight : 0; }

Contributions by_gate_weight(const TokenRecord& record) {
  Contributions token{ShareBasis::kGateWeight, {}, {}};
  for (const LayerRecord& layer : record.layers) {
    // A layer's weights need not sum to one: all layers count alike.
    double sum = 0;
    for (const RouteRecord& route : layer.routes) sum += usable(route.weight);
    if (sum == 0) continue;
    for (const RouteRecord& route : layer.routes) {
      token.add({{}, layer.layer, route.expert}, usable(route.weight) / sum);
    }
  }
  return token;
}

Contributions by_attribution(const TokenRecord& record) {
  Contributions token{ShareBasis::kAttribution, {}, {}};
  for (const TermRecord& term : record.prediction.attribution.terms) {
    if (term.kind != AuditLayout::Term::Kind::kExpert) continue;
    token.add({{}, term.layer, term.expert}, usable(term.value));
  }
  return token;
}

/// The posterior; of a product of experts, which has none, the exponent.
double part_of(const SpecialistShare& share, const AuditLayout::Federation& federation) {
  return usable(federation.shares == ShareKind::kResponsibility ? share.share : share.weight);
}

/// Each specialist's part of the token, shared out by the terms of its own logit.
Contributions by_attribution(const TokenRecord& record, const AuditLayout::Federation& federation) {
  Contributions token{ShareBasis::kAttribution, {}, {}};
  const FederationRecord& of = record.prediction.federation;
  for (size_t i = 0; i < std::min(of.specialists.size(), of.attributions.size()); ++i) {
    double sum = 0;
    const std::vector<TermRecord>& terms = of.attributions[i].terms;
    for (const TermRecord& term : terms) {
      if (term.kind == AuditLayout::Term::Kind::kExpert) sum += usable(term.value);
    }
    // A part that no expert of the specialist's has earned is not the other specialists' either.
    if (sum == 0) token.nobodys += part_of(of.specialists[i], federation);
    for (const TermRecord& term : terms) {
      if (sum == 0 || term.kind != AuditLayout::Term::Kind::kExpert) continue;
      token.add({{}, term.layer, term.expert},
                part_of(of.specialists[i], federation) * (usable(term.value) / sum));
    }
  }
  return token;
}

Contributions by_responsibility(const TokenRecord& record,
                                const AuditLayout::Federation& federation) {
  Contributions token{ShareBasis::kResponsibility, {}, {}};
  const auto& parts = record.prediction.federation.specialists;
  for (size_t i = 0; i < std::min(parts.size(), federation.specialists.size()); ++i) {
    token.add({federation.specialists[i], -1, -1}, part_of(parts[i], federation));
  }
  return token;
}

/// Each basis that a log of this head is expected to have.
std::vector<Contributions> contributions_of(const TokenRecord& record, const VtrHeader& header) {
  std::vector<Contributions> all;
  if (!header.federation.specialists.empty()) {
    all.push_back(by_responsibility(record, header.federation));
    if (!header.terms.empty()) all.push_back(by_attribution(record, header.federation));
    return all;
  }
  if (std::ranges::any_of(header.layers, [](const auto& layer) { return layer.top_k > 0; })) {
    all.push_back(by_gate_weight(record));
  }
  if (!header.terms.empty()) all.push_back(by_attribution(record));
  return all;
}

[[noreturn]] void refuse(ErrorKind kind, const std::string& path, const std::string& what) {
  throw Error(kind, path + ": " + what);
}

uint64_t size_of(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) refuse(ErrorKind::kIo, path, "cannot be read any more: " + error.message());
  return bytes;
}

void check_seal(const VtrReport& report, const std::string& path, const RunOptions& options) {
  if (report.seal == VtrReport::Seal::kBroken) {
    refuse(ErrorKind::kBadFile, path, "the log is broken and settles nothing: " + report.problem);
  }
  if (report.seal == VtrReport::Seal::kOpen && !options.allow_incomplete) {
    refuse(ErrorKind::kBadFile, path,
           "the log is open: it has no end record; expected a complete one, or that incomplete "
           "ones are allowed");
  }
  if (const uint64_t lost = report.counts.positions.num_lost();
      lost > 0 && !options.allow_incomplete) {
    refuse(ErrorKind::kBadFile, path,
           "the log lost " + std::to_string(lost) + " of " +
               std::to_string(report.counts.positions.total()) +
               " positions; expected a complete one, or that incomplete ones are allowed");
  }
  if (report.header.detail == LogDetail::kCounters) {
    refuse(ErrorKind::kUnsupported, path,
           "a log of level counters keeps no tokens; expected level standard or full");
  }
}

}  // namespace

std::string_view share_basis_name(ShareBasis basis) {
  switch (basis) {
    case ShareBasis::kResponsibility: return "responsibility";
    case ShareBasis::kAttribution: return "attribution";
    case ShareBasis::kGateWeight: return "gate_weight";
  }
  return "?";
}

std::string read_log_id(const std::string& path) { return hex(VtrReader(path).header().log_id); }

RunAccount read_run_account(const std::string& path, const RunOptions& options) {
  const VtrReport report = verify_vtr(path, options.key, options.reader);
  check_seal(report, path, options);
  RunAccount run;
  run.path = path;
  const bool has_end = report.seal == VtrReport::Seal::kComplete;
  // What is missing of a log with an end makes it as incomplete as one without.
  run.seal = report.counts.positions.num_lost() > 0 ? VtrReport::Seal::kOpen : report.seal;
  run.proof = sha256_of_file(path);
  run.is_whole = report.redacted_groups == 0;
  const VtrHeader& header = report.header;
  run.log_id = hex(header.log_id);
  if (!header.is_key_ephemeral) run.sealed_by = public_key_text(header.public_key);
  run.model = header.log.model_path;
  run.device = header.log.device;
  run.engine_build = header.engine_build;
  run.started_unix_ns = header.started_unix_ns;
  run.closed_unix_ns = report.closed_unix_ns;

  VtrReader reader(path, options.reader);
  InputTokens input;
  VtrPage page;
  uint64_t bytes = 0, step_ns = 0;
  run.specialists = header.federation.specialists;
  std::set<ShareBasis> left_out;
  while (reader.next(page)) {
    bytes = page.offset + page.bytes;
    if (__builtin_add_overflow(step_ns, page.step_ns, &step_ns)) step_ns = ~uint64_t{0};
    if (!has_end) run.closed_unix_ns = page.closed_unix_ns;
    size_t event = 0;
    for (size_t i = 0; i < page.records.size(); ++i) {
      for (; event < page.events.size() && page.events[event].row <= i; ++event) {
        input.on_event(page.events[event]);
      }
      const TokenRecord& record = page.records[i];
      if (input.is_first_reading(record)) ++run.tokens_in;
      if (!record.has_prediction || !record.prediction.generated) continue;
      ++run.tokens_out;
      for (const Contributions& contributions : contributions_of(record, header)) {
        const bool is_empty = contributions.contributors.empty() && contributions.nobodys == 0;
        if (is_empty && page.is_redacted[i]) {
          left_out.insert(contributions.basis);
        } else {
          add_token(contributions, run);
        }
      }
    }
    for (; event < page.events.size(); ++event) input.on_event(page.events[event]);
  }
  if (static_cast<uint64_t>(run.tokens_out) != report.counts.generated) {
    refuse(
        ErrorKind::kUnsupported, path,
        "the log tells of " + std::to_string(run.tokens_out) + " of the " +
            std::to_string(report.counts.generated) +
            " generated tokens, because columns were left out or are encrypted; expected a whole "
            "log, or the key that opens it");
  }
  if (input.is_unknown()) {
    refuse(ErrorKind::kUnsupported, path,
           "the log left out or encrypts which tokens were read where a sequence was forked or "
           "truncated, so that it cannot be told which were read before; expected a whole log, or "
           "the key that opens it");
  }
  for (const ShareBasis basis : left_out) {
    run.shares.erase(basis);
    run.unshared.erase(basis);
  }
  // An open log counts as far as its whole pages go: a page under way belongs to nothing yet.
  run.log_bytes = static_cast<int64_t>(has_end ? size_of(path) : bytes);
  run.device_us = static_cast<int64_t>(step_ns / 1000);
  return run;
}

}  // namespace vitrine
