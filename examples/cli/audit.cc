// SPDX-License-Identifier: Apache-2.0
// vitrine audit: what was recorded, and whether it can be believed.
#include "audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>

#include "log_options.h"
#include "output_path.h"
#include "replay_models.h"

namespace cli {

namespace {

using vitrine::VtrReport;

/// "lost (sink too slow 10, not reported 2)".
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
    text +=
        fmt::format("; the rows of {} column groups of pages were not opened (--decrypt KEYFILE)",
                    report.closed_groups);
  }
  return text + "\n";
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
          {"recipients", report.header.sealed_keys.size()},
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

/// What verify and show say first.
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
  return fmt::format("complete: {} positions, every one accounted for: {}", positions.total(),
                     states_text(positions));
}

/// What verify says of the model that it was given, if any.
std::string model_line(const std::string& model, const std::string& problem) {
  if (model.empty()) return "";
  if (problem.empty()) return fmt::format("model {}: every file has the hash in the log\n", model);
  return fmt::format("MODEL DOES NOT FIT: {}: {}\n", plain(model), problem);
}

/// The same in JSON.
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

bool is_whole(const VtrReport& report) {
  return report.seal == VtrReport::Seal::kComplete && report.counts.positions.num_lost() == 0;
}

/// Exports but the page go where no one sees an account, so what is broken stays out of them.
void refuse_broken(const std::string& run, const VtrReport& report) {
  if (report.seal != VtrReport::Seal::kBroken) return;
  refuse(fmt::format("{}: {}; expected a log whose pages are whole", run, seal_line(report)));
}

/// Of an export, which goes elsewhere.
void warn(const Run& run) {
  if (!is_complete(run)) write_note(fmt::format("{}: {}", run.path, account_line(run)));
}

}  // namespace

void require_records(const Run& run) {
  if (run.level != "counters") return;
  refuse(fmt::format("{}: level counters has no records; see vitrine audit stats", run.path));
}

bool is_complete(const Run& run) {
  if (run.report) return is_whole(*run.report);
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
    const int code = problem.empty() && is_complete(run) ? 0 : 1;
    if (arguments.json) {
      write_json(run_json(run, arguments.model, problem));
    } else {
      write_out(account_line(run) + "\n" + hidden_line(run) + model_line(arguments.model, problem));
    }
    return code;
  }
  const VtrReport report = vitrine::verify_vtr(arguments.run, key, reader_key(arguments.decrypt));
  const ManifestFinding manifest = check_manifest(arguments.run, report);
  const bool checks_model = !arguments.model.empty() && report.seal != VtrReport::Seal::kBroken;
  const std::string other = checks_model ? model_problem(report.header.log, arguments.model) : "";
  const int code = is_whole(report) && manifest.problem.empty() && other.empty() ? 0 : 1;
  if (arguments.json) {
    nlohmann::ordered_json json = report_json(report);
    if (!manifest.path.empty()) {
      json["manifest"] = {{"path", manifest.path}, {"fits", manifest.problem.empty()}};
      if (!manifest.problem.empty()) json["manifest"]["problem"] = manifest.problem;
    }
    if (checks_model) json["model"] = model_json(arguments.model, other);
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
    text += encryption_text(report);
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

/// 16, 24 or 32 bytes in hexadecimal, as `openssl rand -hex 32` writes them.
std::string read_aes_key(const std::string& option, const std::string& path) {
  if (path.empty()) return "";
  std::string text = vitrine::read_text_file(path, 256);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  std::string key;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned byte = 0;
    const auto [end, status] = std::from_chars(&text[i], &text[i] + 2, byte, 16);
    if (status != std::errc() || end != &text[i] + 2) break;
    key += static_cast<char>(byte);
  }
  if (2 * key.size() != text.size() || (key.size() != 16 && key.size() != 24 && key.size() != 32)) {
    refuse(
        fmt::format("{} {}: is no AES key; expected 32, 48 or 64 hexadecimal digits, as openssl "
                    "rand -hex 32 makes them",
                    option, path));
  }
  return key;
}

int export_tables(const AuditArguments& arguments) {
  if (arguments.out.empty()) refuse("audit export --parquet: expected --out FOLDER");
  const vitrine::ParquetKeys keys{read_aes_key("--parquet-key", arguments.parquet_key),
                                  read_aes_key("--parquet-text-key", arguments.parquet_text_key)};
  const Run run = load_run(arguments.run, arguments.model, arguments.decrypt, arguments.most_bytes);
  require_records(run);
  if (run.report) refuse_broken(run.path, *run.report);
  const auto is_attributed = [](const vitrine::TokenRecord& record) {
    return !attributions_of(record.prediction).empty();
  };
  std::function<std::string(int32_t)> token_bytes;
  if (run.tokenizer) {
    token_bytes = [&run](int32_t id) {
      return id < run.tokenizer->vocab_size() ? run.tokenizer->token_bytes(id) : std::string();
    };
  }
  std::vector<std::pair<std::string, std::string>> notes;
  if (run.report || !is_complete(run)) notes.emplace_back("account", account_line(run));
  if (run.report && !run.report->header.trace_id.empty()) {
    notes.emplace_back("trace_id", run.report->header.trace_id);
  }
  vitrine::ParquetExport tables(arguments.out, run.header,
                                std::any_of(run.records.begin(), run.records.end(), is_attributed),
                                token_bytes, keys, run.federation.specialists, notes);
  for (const vitrine::TokenRecord& record : run.records) tables.add(record);
  tables.finish();
  warn(run);
  return 0;
}

int run_audit_export(const AuditArguments& arguments) {
  if (arguments.json + arguments.html + arguments.parquet != 1) {
    refuse("audit export: expected one format, --json, --html or --parquet");
  }
  refuse_same_file({"--out", arguments.out}, {{"the log", arguments.run},
                                              {"-m", arguments.model},
                                              {"--decrypt", arguments.decrypt},
                                              {"--parquet-key", arguments.parquet_key},
                                              {"--parquet-text-key", arguments.parquet_text_key}});
  if (arguments.parquet) return export_tables(arguments);
  if (!arguments.parquet_key.empty() || !arguments.parquet_text_key.empty()) {
    refuse("--parquet-key is for Parquet; expected --parquet");
  }
  if (arguments.html) {
    const Run run =
        load_run(arguments.run, arguments.model, arguments.decrypt, arguments.most_bytes);
    if (arguments.model.empty()) {
      refuse_same_file({"--out", arguments.out}, {{"the log's model", run.header.model_path}});
    }
    const std::string page = run_page(run);
    if (arguments.out.empty()) {
      write_out(page);
    } else {
      vitrine::write_file_atomically(arguments.out, page);
    }
    warn(run);
    // The page says so itself; who asked for it must hear it as with other formats.
    return run.report && run.report->seal == VtrReport::Seal::kBroken ? 2 : 0;
  }
  std::string text;
  const auto write = [&](std::string_view piece) {
    text += piece;
    if (!arguments.out.empty()) return;
    write_out(text);
    text.clear();
  };
  if (std::filesystem::path(arguments.run).extension() == ".json") {
    warn(load_run(arguments.run, "", ""));  // refuses what is no log
    write(vitrine::read_text_file(arguments.run, uint64_t{1} << 30));
  } else {
    refuse_broken(arguments.run,
                  vitrine::verify_vtr(arguments.run, {}, reader_key(arguments.decrypt)));
    vitrine::VtrReader reader(arguments.run, reader_key(arguments.decrypt));
    const auto tokenizer = find_tokenizer(reader.header().log, arguments.model);
    std::function<std::string(int32_t)> token_text;
    if (tokenizer) {
      token_text = [tokenizer](int32_t id) {
        return id >= 0 && id < tokenizer->vocab_size() ? tokenizer->token_text(id) : std::string();
      };
    }
    vitrine::export_json(reader, write, token_text);
    if (!reader.end()) {
      write_note(fmt::format("{}: OPEN: it ends without an end record; what it has was exported",
                             arguments.run));
    } else if (const vitrine::VtrAccount& positions = reader.end()->counts.positions;
               positions.num_lost() > 0) {
      write_note(fmt::format("{}: INCOMPLETE: {} of {} positions were {}", arguments.run,
                             positions.num_lost(), positions.total(), lost_text(positions)));
    }
  }
  if (!arguments.out.empty()) vitrine::write_file_atomically(arguments.out, text);
  return 0;
}

/// The head is signed and stays as it is, with what it says of a constraint.
void warn_of_constraint(const AuditArguments& arguments, const vitrine::LogHeader& log) {
  const bool has_text =
      std::ranges::any_of(log.constraint, [](const auto& pair) { return pair.first == "text"; });
  if (!tells_of_text(arguments.columns) || !has_text) return;
  write_note(fmt::format(
      "{}: its head has the text of the constraint, which is signed with it and cannot be left "
      "out; generate --redact writes its SHA-256 instead",
      arguments.out));
}

/// FIRST-LAST; all where none is given.
struct Positions {
  int64_t first = 0, last = std::numeric_limits<int64_t>::max();
  bool holds(int64_t position) const { return position >= first && position <= last; }
};

Positions parse_positions(const std::string& text) {
  if (text.empty()) return {};
  const std::vector<int64_t> range = parse_numbers(text, '-');
  if (range.size() != 2 || range[1] < range[0]) {
    refuse(fmt::format("--positions {}: expected FIRST-LAST, as 0-11", text));
  }
  return {range[0], range[1]};
}

void require_record(const std::string& log, const Positions& positions) {
  vitrine::VtrReader reader(log);
  vitrine::VtrPage page;
  while (reader.next(page)) {
    for (const vitrine::TokenRecord& record : page.records) {
      if (positions.holds(record.position)) return;
    }
  }
  refuse(fmt::format("--positions {}-{}: {} has no record there", positions.first, positions.last,
                     log));
}

/// A token is told at its own position, and by the one before it, which predicted it.
void warn_of_predictions(const AuditArguments& arguments, const Positions& positions) {
  const bool hides_tokens = std::ranges::any_of(
      arguments.columns, [](const std::string& one) { return one == "tokens" || one == "text"; });
  if (!hides_tokens) return;
  int64_t first = positions.last, last = 0, count = 0;
  vitrine::VtrReader reader(arguments.out, reader_key(arguments.decrypt));
  vitrine::VtrPage page;
  while (reader.next(page)) {
    for (const vitrine::TokenRecord& record : page.records) {
      if (!record.has_prediction || record.prediction.token < 0) continue;
      if (!positions.holds(record.position + 1)) continue;
      first = std::min(first, record.position);
      last = std::max(last, record.position);
      ++count;
    }
  }
  if (count == 0) return;
  write_note(
      fmt::format("{}: {} of the tokens are still told by what predicted them; leave out "
                  "predictions and digests, too (--columns prediction,digests --positions "
                  "{}-{})",
                  arguments.out, count, first, last));
}

int run_audit_redact(const AuditArguments& arguments) {
  refuse_same_file({"the copy", arguments.out},
                   {{"the log", arguments.run}, {"--decrypt", arguments.decrypt}});
  if (arguments.out.ends_with(".json")) {
    refuse(fmt::format("{}: the copy is a sealed log; expected a name that ends in .vtr",
                       arguments.out));
  }
  vitrine::VtrRedaction redaction;
  redaction.groups = arguments.columns;
  const Positions positions = parse_positions(arguments.positions);
  if (!arguments.positions.empty()) {
    require_record(arguments.run, positions);
    redaction.rows = [positions](uint64_t, int64_t position) { return positions.holds(position); };
  }
  vitrine::redact_vtr(arguments.run, arguments.out, redaction, reader_key(arguments.decrypt),
                      arguments.overwrite);
  const vitrine::VtrReport report = vitrine::verify_vtr(arguments.out);
  if (!arguments.positions.empty() && !report.header.sealed_keys.empty()) {
    write_note(
        fmt::format("{}: the log is encrypted, and what stands of {} beside the positions "
                    "that were left out is in the clear in this copy",
                    arguments.out, fmt::join(arguments.columns, ", ")));
  }
  warn_of_predictions(arguments, positions);
  if (const std::string left = what_still_tells(arguments.columns); !left.empty()) {
    write_note(fmt::format("{}: whoever has the model still finds the text by {}; leave these "
                           "out, too, to withhold it",
                           arguments.out, left));
  }
  write_out(fmt::format("{}: {}; {} column groups of pages were left out, whole or in part\n",
                        arguments.out, seal_line(report), report.redacted_groups));
  warn_of_constraint(arguments, report.header.log);
  return 0;
}

}  // namespace cli
