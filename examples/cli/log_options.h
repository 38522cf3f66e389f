// SPDX-License-Identifier: Apache-2.0
// Where a run's log goes and what it keeps: the options that commands which generate share.
#pragma once

#include <memory>
#include <optional>

#include "common.h"
#include "output_path.h"
#include "vitrine/audit_log.h"

namespace cli {

/// Either kind of log.
struct Log {
  std::unique_ptr<vitrine::JsonLog> json;
  std::unique_ptr<vitrine::VtrLog> sealed;

  vitrine::AuditSink& sink() { return sealed ? sealed->sink() : json->sink(); }
  void on_record(const std::function<void(const vitrine::TokenRecord&)>& callback) {
    sealed ? sealed->on_record(callback) : json->on_record(callback);
  }
  /// Also writes the manifest of a sealed log, where there is a key to sign it.
  void finish(const std::string& reason);

  std::string path;
  std::optional<vitrine::SealKey> key;
};

/// Reads "auditor.pub" or "auditor.pub:routing,norms": the key's file, and the columns.
vitrine::VtrRecipient parse_recipient(const std::string& argument);

/// Whether one of the columns tells what was written.
bool tells_of_text(const std::vector<std::string>& columns);

/// Where tokens or text are among columns that are left out: the others, with commas, by which
/// whoever has the model still finds them. `there`: the columns that the log has.
std::string what_still_tells(const std::vector<std::string>& columns,
                             const std::vector<std::string>& there);

/// --audit and the options that need it.
struct LogOptions {
  std::string path, folder, mode = "deferred", level = "standard", seal;
  std::string on_error = "fail", when_behind = "wait", trace_id;
  std::string stream;  ///< where messages go as they come; empty: nowhere
  std::vector<std::string> encrypt_for, redact;
  std::string hidden_states, hidden_positions = "all";
  bool durable = false, text = false, overwrite = false, names_host = false;

  void add_to(CLI::App& command);
  /// Refuses what does not go together, and a log or stream that would replace one of `inputs`.
  /// Makes the log's name where only its folder was given.
  void check(const std::vector<NamedPath>& inputs);
  /// Whoever is handed the log may not read what was said: it is encrypted, or a column that tells
  /// the text is left out.
  bool hides_text() const;
  vitrine::AuditMode audit_mode() const;
  vitrine::AuditLevel audit_level() const;
  /// Opens the log; `prompt_tokens`: how many positions of a sequence are its prompt.
  std::unique_ptr<Log> open(vitrine::LogHeader header, int64_t prompt_tokens,
                            std::function<vitrine::TokenPiece(int32_t)> token_text) const;
  /// What the log is worth, for the closing note; also how large it is. `log` may be null.
  std::string note(const Log* log) const;

 private:
  void name_log();
  bool is_sealed_log() const;
  std::vector<std::string> told_columns() const;
  void check_hidden_states() const;
  void check_stream() const;
  void check_places(std::vector<NamedPath> inputs) const;
};

}  // namespace cli
