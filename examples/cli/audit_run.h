// SPDX-License-Identifier: Apache-2.0
// A recorded run, from a `.vtr` or a JSON log, as the audit commands see it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common.h"
#include "vitrine/audit_log.h"

namespace cli {

struct Run {
  std::string path;
  vitrine::LogHeader header;
  std::string level, mode, stop_reason;                    // stop_reason "": none was written
  uint64_t started_unix_ns = 0, started_monotonic_ns = 0;  // 0: not told
  std::string engine_build;                                // or empty
  bool is_rounded = false;                    // its values: a .vtr of level standard, or its export
  std::vector<vitrine::TokenRecord> records;  // in the order they were processed
  std::vector<uint64_t> digests;              // [records], or empty
  /// [records][layers]; or empty, also where a record's were left out.
  std::vector<std::vector<vitrine::LayerMark>> layer_marks;
  std::vector<std::string> text;  // [records]: pieces ("" where left out), or empty
  /// [records]: text and bytes that a JSON log has beside the pieces, or empty.
  std::vector<std::pair<std::string, std::string>> spelling;
  std::vector<std::vector<uint64_t>> uses;  // [layer][expert]: how often it was routed to
  uint64_t told_tokens = 0;  // where `uses` are of the log's own counts over so many, and no
                             // record's routes can be read
  std::vector<uint32_t> layer_numbers;          // [layer]
  std::vector<int> hidden_state_layers;         // that the recorder kept
  vitrine::AuditLayout::Federation federation;  // no names: a single model
  std::vector<bool> is_redacted;                // [records]: something was left out
  std::vector<vitrine::ConstraintFailure> failures;
  std::vector<vitrine::DraftedPass> drafts;
  /// In order, of a JSON log the forks; `first`: how many records stand before the event.
  std::vector<std::pair<size_t, vitrine::VtrEvent>> events;
  // Holds what a JSON log says of itself.
  uint64_t lost = 0;                                     // positions without a record
  std::optional<std::pair<uint64_t, uint64_t>> counted;  // generated and scored predictions
  std::string problem;                                   // where it contradicts itself, or empty
  /// verify_vtr()'s answer for a .vtr (without a key).
  std::optional<vitrine::VtrReport> report;
  std::shared_ptr<vitrine::Tokenizer> tokenizer;    // may be null
  std::unordered_map<int32_t, std::string> pieces;  // from `text`, where there is no tokenizer

  /// A token's text in quotes, or its id where there is no tokenizer; "-" for one left out.
  std::string quoted(int32_t token) const;
};

/// Reads either kind. `model`: the folder whose tokenizer turns ids into text; empty: the one the
/// log names, where it is there and its tokenizer.json is the same file. `decrypt`: the file of a
/// recipient's secret key, or empty. Refuses a .vtr whose records take more than `most_bytes` of
/// memory (0: half of the machine's).
Run load_run(const std::string& path, const std::string& model, const std::string& decrypt,
             uint64_t most_bytes = 0);

/// Refuses a log of level counters, which `command` finds no single token in.
void require_tokens(const Run& run, const char* command);

/// The logit as a sum, or each specialist's; empty where nothing was attributed, or it was left
/// out.
std::vector<const vitrine::AttributionRecord*> attributions_of(
    const vitrine::PredictionRecord& prediction);

/// The key in a file; none for an empty path.
std::optional<vitrine::SealKey> reader_key(const std::string& path);

/// The tokenizer for a log, or null.
std::shared_ptr<vitrine::Tokenizer> find_tokenizer(const vitrine::LogHeader& header,
                                                   const std::string& model);

/// No position of a log is beyond.
constexpr int64_t kMaxPositions = int64_t{1} << 40;

/// Records whose prediction can be read: those that chose a token, and that score the prompt.
std::pair<uint64_t, uint64_t> readable_predictions(const Run& run);

/// Something of the record was left out or is encrypted.
bool is_redacted(const Run& run, size_t index);
/// How many records lack something and why that may be; empty where none does. As a line, too.
std::string hidden_text(const Run& run);
std::string hidden_line(const Run& run);

/// A log's own text with what steers a terminal taken out.
std::string plain(const std::string& text);

/// Colours for a terminal; empty where standard output is none or NO_COLOR is set.
struct Colours {
  const char *dim = "", *bold = "", *red = "", *yellow = "", *green = "", *blue = "", *off = "";
  static Colours of_output();
  /// By how improbable a token was.
  const char* of_surprise(float logprob) const;
};

}  // namespace cli
