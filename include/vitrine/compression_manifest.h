// SPDX-License-Identifier: Apache-2.0
// The room `gates`: what a quantized folder says of itself, held against its files, and who signed
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/audit_log.h"

namespace vitrine {

/// The file of a folder in which quantize_checkpoint() says how it was made.
inline constexpr std::string_view kCompressionManifestFile = "vitrine_manifest.json";
/// The file of a folder in which somebody signs that.
inline constexpr std::string_view kCompressionSealFile = "vitrine_manifest.dsse.json";

/// Returns an account of a quantized folder's manifest as a JSON object, each file that it names
/// hashed again: `method`, `scheme`, `tool`, `instruction_set`, `threads`, `bytes` and `expires`;
/// `files` (of the result, and of the source where its folder is given) with a state of "same",
/// "changed", "missing" or "not checked"; `unnamed`, the model's files that it does not name;
/// `matrices` by bits and group; `experts`, `fallbacks`, `left` by reason, `calibration`, `corpus`,
/// `evaluation`, `gate` and `adapters` as they stand there, lists of many names as their numbers;
/// `is_signed`, and `missing`: what it says nothing of. Nothing of a folder is trusted. Throws kIo,
/// and kBadFile (naming file and field) for a folder without a manifest and what is none.
/// Thread-safe.
VITRINE_API std::string compression_account(const std::string& folder,
                                            const std::string& source = {});

/// Returns what seals a quantized folder: an in-toto statement (v1) in a DSSE envelope, one line of
/// JSON, signed with Ed25519. Its subjects are the folder's files that the manifest names and the
/// manifest itself with their SHA-256, its predicate is the manifest. Each file is hashed again:
/// throws kBadFile where one is not what the manifest says, or where a file that programs load with
/// a model (weights, settings, words, templates, code) is not named, and kIo. The same folder and
/// key give the same bytes. Thread-safe.
VITRINE_API std::string seal_compression(const std::string& folder, const SealKey& key);

/// What a sealed folder says.
struct VerifiedCompression {
  PublicKey signer = {};           ///< whose signature it has
  bool is_given_key = false;       ///< that is the key that the caller named
  std::vector<std::string> files;  ///< those that were signed, in the seal's order
  std::string manifest;            ///< the JSON text of the manifest in the seal
  std::string expires;             ///< the last day on which it holds, "2027-06-30"; empty: always
  bool is_expired = false;         ///< that day is over
};

/// Checks a sealed folder: its signature (by `key`, or where none is given by the key that it
/// names), that each file has the hash that was signed, that the manifest that stands there is the
/// one that was signed, and that no file that programs load with a model stands there unnamed.
/// `unix_seconds`: now, in UTC, for the day on which it expires, which is no error. Throws kBadFile
/// with one line (file, field, what was found and what was expected), kIo. Thread-safe.
VITRINE_API VerifiedCompression verify_compression(const std::string& folder,
                                                   const std::optional<PublicKey>& key,
                                                   int64_t unix_seconds);

/// Returns whether a text is a day of the calendar as ISO 8601 writes it: "2027-06-30".
VITRINE_API bool is_calendar_day(std::string_view text);

}  // namespace vitrine
