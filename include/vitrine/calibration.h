// SPDX-License-Identifier: Apache-2.0
// The room `compress`: texts by which weights are chosen, made of a corpus that is looked through,
// in a file with what is known of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "vitrine/calibration_statistics.h"
#include "vitrine/core.h"
#include "vitrine/tokenizer.h"

namespace vitrine {

/// Texts for a calibration (QuantizeOptions::calibration), as a file holds them: JSON with the
/// fields schema ("vitrine-calibration"), schema_version (1), texts, tokenizer_sha256, manifest
/// and, where they were measured, statistics.
struct CalibrationTexts {
  std::vector<std::vector<int32_t>> texts;  ///< token ids, each text a context of its own
  std::string tokenizer_sha256;             ///< of the tokenizer.json that made the ids
  std::string manifest = "{}";              ///< a JSON object: sources and what was found in them
  /// Tells what they make of the model; nothing in files of before, and where it was not measured.
  std::optional<CalibrationStatistics> statistics = {};
};

/// A file of a corpus.
struct CalibrationSource {
  std::string name;                    ///< as the manifest calls it
  std::string sha256;                  ///< of its bytes
  std::vector<std::string> documents;  ///< valid UTF-8, each a context of its own
};

/// Tells in which order windows are taken.
struct WindowChoice {
  std::vector<size_t> order;  ///< of the windows; those that are not named are not taken
  std::string record = "{}";  ///< a JSON object for the manifest: how they were chosen
};

/// Says what a calibration is made of, and how.
struct CalibrationRequest {
  std::vector<CalibrationSource> sources;      ///< at least one, with text
  std::vector<CalibrationSource> evaluations;  ///< texts that the model will be evaluated on
  int64_t tokens = 65536;                      ///< to take; fewer where there are no more
  int64_t window = 512;                        ///< of a text at most; longer documents are cut
  int64_t context = 0;                         ///< of the model, for the report; 0: unknown
  bool scrubs = true;  ///< personal data and keys become stand-ins, as far as patterns find them
  /// The share of tokens that may stand in the evaluations, too, in runs of 13.
  double most_shared = 0.001;
  /// Chooses among the windows that would be taken in turn for `pool` tokens, in that order; empty:
  /// they are taken in turn (cover_windows() chooses by what the model's experts lack).
  std::function<WindowChoice(const std::vector<std::vector<int32_t>>& windows)> choose = {};
  int64_t pool = 0;  ///< tokens to choose from, at least `tokens`; 0: four times as many
  // Governance, as whoever answers for the corpus states it, goes into the manifest.
  std::string licence;       ///< of the texts
  std::string purpose;       ///< for which they may be used
  std::string retention;     ///< how long they are kept
  std::string version;       ///< of the corpus
  std::string expires = {};  ///< the last day on which it holds, "2027-06-30"; empty: always
  /// A JSON object for the manifest, on what another scrubber found: its report's name, size and
  /// hash. Empty: there is none.
  std::string scrubber_report = {};
  /// Called with each source before it is read. May throw.
  std::function<void(const std::string& source)> progress;
};

/// Makes a calibration. Windows are taken from the sources in turn, from all over each of them, so
/// that a small one is not drowned; the same request gives the same texts. The manifest holds the
/// request, each source with its digest, documents and tokens, a Merkle root over salted digests of
/// the documents, how windows were chosen, what was replaced, what of code, mathematics, structure,
/// languages, the vocabulary and context lengths is there and what is missing, and what the
/// evaluations share. Throws kInvalidArgument for a corpus without tokens, a document that is no
/// text, a choice of windows that there are not or twice of one, and where the evaluations share
/// more than they may. Thread-safe.
VITRINE_API CalibrationTexts make_calibration(const Tokenizer& tokenizer,
                                              const std::string& tokenizer_sha256,
                                              const CalibrationRequest& request);

/// Reads such a file. Throws kIo, and kBadFile for a file that is none, a text without tokens or
/// with a negative id, and more than a GiB. Thread-safe.
VITRINE_API CalibrationTexts read_calibration(const std::string& path);

/// Writes one, whole or not at all. Throws kInvalidArgument for a manifest that is no JSON object,
/// kIo. Thread-safe.
VITRINE_API void write_calibration(const std::string& path, const CalibrationTexts& calibration);

}  // namespace vitrine
