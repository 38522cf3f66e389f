// SPDX-License-Identifier: Apache-2.0
// vitrine audit export.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "audit.h"
#include "output_path.h"

namespace cli {

namespace {

using vitrine::VtrReport;

/// Exports but the page go where no one sees an account, so what is broken stays out of them.
void refuse_broken(const std::string& run, const VtrReport& report) {
  if (report.seal != VtrReport::Seal::kBroken) return;
  refuse(fmt::format("{}: {}; expected a log whose pages are whole", run, seal_line(report)));
}

/// Notes on standard error that the run is not complete; the export itself goes elsewhere.
void warn(const Run& run) {
  if (!is_complete(run)) write_note(fmt::format("{}: {}", run.path, account_line(run)));
}

/// The pieces that a log stores (generate --audit-text), by id.
std::unordered_map<int32_t, std::string> stored_pieces(const AuditArguments& arguments) {
  std::unordered_map<int32_t, std::string> pieces;
  vitrine::VtrReader reader(arguments.run, reader_key(arguments.decrypt));
  vitrine::VtrPage page;
  while (reader.next(page)) {
    for (size_t i = 0; i < std::min(page.text.size(), page.records.size()); ++i) {
      if (!page.text[i].empty()) pieces.emplace(page.records[i].token, page.text[i]);
    }
  }
  return pieces;
}

std::string piece_of(const std::unordered_map<int32_t, std::string>& pieces, int32_t id) {
  const auto found = pieces.find(id);
  return found == pieces.end() ? std::string() : found->second;
}

/// Notes that an export's text comes from nowhere, or from the log itself.
void warn_of_text(const std::string& run, const vitrine::LogHeader& header, bool has_tokenizer,
                  bool has_pieces) {
  if (has_tokenizer) return;
  write_note(fmt::format(
      "{}: the tokenizer of {} was not found (-m), {}", run, plain(header.model_path),
      has_pieces ? "so that the text is the pieces that the log stores; a token that it never read "
                   "has none"
                 : "and the log stores no text (generate --audit-text): tokens are ids alone"));
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
  std::vector<std::pair<std::string, std::string>> notes;
  if (run.tokenizer) {
    token_bytes = [&run](int32_t id) {
      return id < run.tokenizer->vocab_size() ? run.tokenizer->token_bytes(id) : std::string();
    };
  } else if (!run.pieces.empty()) {
    token_bytes = [&run](int32_t id) { return piece_of(run.pieces, id); };
    notes.emplace_back("text", "pieces, as the log has them: no tokenizer was found");
  }
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
  warn_of_text(run.path, run.header, run.tokenizer != nullptr, !run.pieces.empty());
  return 0;
}

}  // namespace

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
    const auto key = reader_key(arguments.decrypt);
    const VtrReport report = vitrine::verify_vtr(arguments.run, {}, key);
    refuse_broken(arguments.run, report);
    vitrine::VtrReader reader(arguments.run, key);
    const auto tokenizer = find_tokenizer(reader.header().log, arguments.model);
    std::unordered_map<int32_t, std::string> pieces;
    std::function<vitrine::TokenPiece(int32_t)> token_text;
    if (tokenizer) {
      token_text = [tokenizer](int32_t id) { return token_piece(*tokenizer, id); };
    } else if (reader.header().has_text) {
      pieces = stored_pieces(arguments);
      if (!pieces.empty()) {
        token_text = [&pieces](int32_t id) { return vitrine::TokenPiece(piece_of(pieces, id)); };
      }
    }
    vitrine::export_json(reader, write, token_text);
    warn_of_text(arguments.run, reader.header().log, tokenizer != nullptr, !pieces.empty());
    if (!report.redacted_columns.empty() && is_complete(report)) {
      write_note(fmt::format("{}: {}", arguments.run, seal_line(report)));
    }
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

}  // namespace cli
