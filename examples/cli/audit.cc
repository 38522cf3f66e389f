// SPDX-License-Identifier: Apache-2.0
// vitrine audit: what was recorded, and whether it can be believed.
#include "audit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "replay_models.h"

namespace cli {

namespace {

using vitrine::VtrReport;

std::string states_text(const vitrine::VtrAccount& positions) {
  std::string text;
  const auto add = [&text](uint64_t count, const std::string& state) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, state);
  };
  add(positions.captured, "captured");
  add(positions.counted, "counted");
  add(positions.replayed, "replayed");
  add(positions.discarded, "discarded");
  add(positions.num_lost(), lost_text(positions));
  return text.empty() ? "none" : text;
}

std::string key_text(const VtrReport& report) {
  const std::string key = vitrine::public_key_text(report.header.public_key).substr(0, 16);
  if (report.is_key_given) return fmt::format("sealed with the given key {}…", key);
  return report.header.is_key_ephemeral
             ? "sealed with a key of its own: the log vouches only for itself"
             : fmt::format(
                   "sealed with key {}…; no --key was given, so the log vouches only for "
                   "itself",
                   key);
}

/// Who can read it, where not everyone can.
std::string encryption_text(const VtrReport& report) {
  if (report.header.sealed_keys.empty()) return "";
  std::string text = fmt::format("encrypted for {} recipient{}", report.header.sealed_keys.size(),
                                 report.header.sealed_keys.size() == 1 ? "" : "s");
  if (report.closed_groups > 0) {
    text += fmt::format(
        "; the rows of {} column groups of pages were not opened (--decrypt KEYFILE): {}",
        report.closed_groups, fmt::join(report.closed_columns, ", "));
  }
  return text + "\n";
}

/// Returns what the head says of the run; large numbers are texts, as in a JSON log.
nlohmann::ordered_json head_json(const vitrine::VtrHeader& header) {
  const vitrine::LogHeader& log = header.log;
  const auto pairs = [](const std::vector<std::pair<std::string, std::string>>& from) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (const auto& [name, value] : from) json[name] = value;
    return json;
  };
  return {{"started", vitrine::utc_text(header.started_unix_ns)},
          {"started_unix_ns", std::to_string(header.started_unix_ns)},
          {"started_monotonic_ns", std::to_string(header.started_monotonic_ns)},
          {"host_name", log.host_name},
          {"engine_build", header.engine_build},
          {"trace_id", header.trace_id},
          {"model", log.model_path},
          {"architecture", log.architecture},
          {"device", log.device},
          {"kernels", log.kernels},
          {"isa", log.isa},
          {"threads", log.threads},
          {"seed", std::to_string(log.seed)},
          {"engine", pairs(log.engine)},
          {"sampler", pairs(log.sampler)},
          {"constraint", pairs(log.constraint)},
          {"sha256", pairs(log.hashes)}};
}

nlohmann::ordered_json report_json(const VtrReport& report) {
  const vitrine::VtrCounts& counts = report.counts;
  const vitrine::VtrAccount& positions = counts.positions;
  nlohmann::ordered_json lost;
  for (size_t i = 0; i < vitrine::kLostReasons; ++i) {
    lost[std::string(lost_reason_name(static_cast<vitrine::LostReason>(i)))] = positions.lost[i];
  }
  const bool is_broken = report.seal == VtrReport::Seal::kBroken;
  return {{"seal", seal_name(report.seal)},
          {"is_key_given", report.is_key_given},
          {"public_key", vitrine::public_key_text(report.header.public_key)},
          {"is_key_of_its_own", report.header.is_key_ephemeral},
          {"problem", is_broken ? nlohmann::ordered_json(report.problem) : nullptr},
          {"record", is_broken ? nlohmann::ordered_json(report.page) : nullptr},
          {"byte", is_broken ? nlohmann::ordered_json(report.offset) : nullptr},
          {"torn_bytes", report.torn_bytes},
          {"redacted_groups", report.redacted_groups},
          {"redacted_columns", report.redacted_columns},
          {"closed_columns", report.closed_columns},
          {"recipients", report.header.sealed_keys.size()},
          {"head", head_json(report.header)},
          {"closed_groups", report.closed_groups},
          {"stop_reason", report.stop_reason},
          {"counts",
           {{"pages", counts.pages},
            {"passes", counts.passes},
            {"step_ns", counts.step_ns},
            {"tokens", counts.tokens},
            {"generated", counts.generated},
            {"scored", counts.scored},
            {"sequences", counts.sequences},
            {"events", counts.events}}},
          {"positions",
           {{"total", positions.total()},
            {"captured", positions.captured},
            {"counted", positions.counted},
            {"replayed", positions.replayed},
            {"discarded", positions.discarded},
            {"lost", lost}}}};
}

/// What verify says of the model that it was given, if any.
std::string model_line(const std::string& model, const std::string& problem) {
  if (model.empty()) return "";
  if (problem.empty()) return fmt::format("model {}: every file has the hash in the log\n", model);
  return fmt::format("MODEL DOES NOT FIT: {}: {}\n", plain(model), problem);
}

/// Tells in JSON whether the model fits the log.
nlohmann::ordered_json model_json(const std::string& model, const std::string& problem) {
  nlohmann::ordered_json json = {{"path", model}, {"fits", problem.empty()}};
  if (!problem.empty()) json["problem"] = problem;
  return json;
}

/// What verify says of a JSON log.
nlohmann::ordered_json run_json(const Run& run, const std::string& model,
                                const std::string& problem) {
  const auto [generated, scored] = *run.counted;
  nlohmann::ordered_json json = {
      {"seal", nullptr},
      {"account", account_line(run)},
      {"problem",
       run.problem.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(run.problem)},
      {"stop_reason", run.stop_reason},
      {"counts",
       {{"tokens", run.records.size()},
        {"generated", generated},
        {"scored", scored},
        {"lost", run.lost}}}};
  if (!model.empty()) json["model"] = model_json(model, problem);
  return json;
}

/// Names the columns that verify was asked to find whole and does not, each with the reason.
using Missing = std::vector<std::pair<std::string, std::string>>;

Missing missing_columns(const AuditArguments& arguments, const VtrReport& report) {
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  Missing missing;
  const auto add = [&](const std::string& name) {
    const char* why = has(report.redacted_columns, name) ? "left out"
                      : has(report.closed_columns, name) ? "encrypted and not opened"
                      : has(report.columns, name)        ? nullptr
                                                         : "never in the log";
    const bool is_told =
        std::ranges::any_of(missing, [&](const auto& of) { return of.first == name; });
    if (why != nullptr && !is_told) missing.emplace_back(name, why);
  };
  std::ranges::for_each(arguments.required, add);
  if (arguments.requires_unredacted) {
    std::ranges::for_each(report.redacted_columns, add);
    std::ranges::for_each(report.closed_columns, add);
  }
  return missing;
}

std::string missing_line(const Missing& missing) {
  if (missing.empty()) return "";
  std::string text;
  for (const auto& [name, why] : missing) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", name, why);
  }
  return "MISSING: " + text + "\n";
}

}  // namespace

std::string lost_text(const vitrine::VtrAccount& positions) {
  std::string reasons;
  for (size_t i = 0; i < vitrine::kLostReasons; ++i) {
    if (positions.lost[i] == 0) continue;
    reasons +=
        fmt::format("{}{} {}", reasons.empty() ? "" : ", ",
                    lost_reason_name(static_cast<vitrine::LostReason>(i)), positions.lost[i]);
  }
  return fmt::format("lost ({})", reasons);
}

std::string seal_line(const VtrReport& report) {
  const vitrine::VtrAccount& positions = report.counts.positions;
  switch (report.seal) {
    case VtrReport::Seal::kBroken: return fmt::format("BROKEN: {}", plain(report.problem));
    case VtrReport::Seal::kOpen:
      return fmt::format(
          "OPEN: intact, but it ends without an end record (a crash or a cut{}); "
          "{} positions so far: {}",
          report.torn_bytes == 0
              ? std::string()
              : fmt::format(", {} bytes of an unfinished page", report.torn_bytes),
          positions.total(), states_text(positions));
    case VtrReport::Seal::kComplete: break;
  }
  if (positions.num_lost() > 0) {
    return fmt::format("INCOMPLETE: the seal is whole, but {} of {} positions were {}",
                       positions.num_lost(), positions.total(), lost_text(positions));
  }
  const std::string redacted =
      report.redacted_columns.empty()
          ? ""
          : fmt::format(", redacted: {}", fmt::join(report.redacted_columns, ", "));
  return fmt::format("complete{}{} {} positions, every one accounted for: {}", redacted,
                     redacted.empty() ? ":" : ";", positions.total(), states_text(positions));
}

void require_records(const Run& run) {
  if (run.level != "counters") return;
  refuse(fmt::format("{}: level counters has no records; see vitrine audit stats", run.path));
}

bool is_complete(const VtrReport& report) {
  return report.seal == VtrReport::Seal::kComplete && report.counts.positions.num_lost() == 0;
}

bool is_complete(const Run& run) {
  if (run.report) return is_complete(*run.report);
  return run.problem.empty() && run.lost == 0 && run.stop_reason != "open";
}

std::string account_line(const Run& run) {
  if (run.report) return seal_line(*run.report);
  const std::string what =
      !run.problem.empty()        ? fmt::format("INCONSISTENT: {}; ", run.problem)
      : run.lost > 0              ? fmt::format("INCOMPLETE: {} positions were lost; ", run.lost)
      : run.stop_reason == "open" ? "OPEN: exported from a log that ended without an end record; "
                                  : "";
  return what + fmt::format(
                    "not sealed: a JSON log has no proof of its content; {} records, as many as it "
                    "says",
                    run.records.size());
}

int run_audit_keygen(const AuditArguments& arguments) {
  const vitrine::SealKey key = vitrine::SealKey::generate();
  key.save(arguments.key);
  write_out(fmt::format("{}\t{}.pub\n", vitrine::public_key_text(key.public_key()), arguments.key));
  return 0;
}

int run_audit_verify(const AuditArguments& arguments) {
  std::optional<vitrine::PublicKey> key;
  if (!arguments.key.empty()) key = vitrine::load_public_key(arguments.key);
  if (std::filesystem::path(arguments.run).extension() == ".json") {
    if (key) refuse(fmt::format("{}: a JSON log has no seal; expected a .vtr log", arguments.run));
    const Run run = load_run(arguments.run, "", "");
    const std::string problem =
        arguments.model.empty() ? "" : model_problem(run.header, arguments.model);
    if (!arguments.required.empty()) {
      refuse(fmt::format(
          "--require {}: a JSON log does not say which columns it lacks; expected a .vtr log, or "
          "--require-unredacted",
          arguments.run));
    }
    const std::string hidden = arguments.requires_unredacted ? hidden_text(run) : "";
    const int code = problem.empty() && hidden.empty() && is_complete(run) ? 0 : 1;
    if (arguments.json) {
      write_json(run_json(run, arguments.model, problem));
    } else {
      write_out(account_line(run) + "\n" + hidden_line(run) + model_line(arguments.model, problem) +
                (hidden.empty() ? "" : "MISSING: " + hidden + "\n"));
    }
    return code;
  }
  const VtrReport report = vitrine::verify_vtr(arguments.run, key, reader_key(arguments.decrypt));
  const ManifestFinding manifest = check_manifest(arguments.run, report);
  const bool checks_model = !arguments.model.empty() && report.seal != VtrReport::Seal::kBroken;
  const std::string other = checks_model ? model_problem(report.header.log, arguments.model) : "";
  const bool is_broken = report.seal == VtrReport::Seal::kBroken;
  const Missing missing = is_broken ? Missing() : missing_columns(arguments, report);
  const int code =
      is_complete(report) && manifest.problem.empty() && other.empty() && missing.empty() ? 0 : 1;
  if (arguments.json) {
    nlohmann::ordered_json json = report_json(report);
    if (!manifest.path.empty()) {
      json["manifest"] = {{"path", manifest.path}, {"fits", manifest.problem.empty()}};
      if (!manifest.problem.empty()) json["manifest"]["problem"] = manifest.problem;
    }
    if (checks_model) json["model"] = model_json(arguments.model, other);
    for (const auto& [name, why] : missing) json["missing"][name] = why;
    write_json(json);
    return code;
  }
  std::string text = seal_line(report) + "\n";
  if (report.seal != VtrReport::Seal::kBroken) {
    text += key_text(report) + "\n";
    text += fmt::format(
        "{} pages, {} passes in {:.3g} s, {} records ({} generated, {} scored), {} "
        "sequences\n",
        report.counts.pages, report.counts.passes,
        static_cast<double>(report.counts.step_ns) * 1e-9, report.counts.tokens,
        report.counts.generated, report.counts.scored, report.counts.sequences);
    if (report.redacted_groups > 0) {
      text += fmt::format("{} column groups of pages were left out, whole or in part\n",
                          report.redacted_groups);
    }
    text += encryption_text(report) + missing_line(missing);
    if (!manifest.problem.empty()) {
      text += "MANIFEST DOES NOT FIT: " + plain(manifest.problem) + "\n";
    } else if (!manifest.path.empty()) {
      text += fmt::format("manifest {}: signed with the same key, and it fits the log\n",
                          manifest.path);
    }
    text += model_line(arguments.model, other);
  }
  write_out(text);
  return code;
}

}  // namespace cli
