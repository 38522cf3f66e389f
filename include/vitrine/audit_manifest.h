// SPDX-License-Identifier: Apache-2.0
// The manifest of a sealed log: an in-toto statement in a DSSE envelope, which others' tools can
// check (docs/audit-manifest.md).
//
//     log.finish("length");
//     write_manifest("run.vtr", key, manifest_path("run.vtr"));
//     …
//     verify_manifest(verify_vtr("run.vtr", public_key), "run.vtr", manifest_path("run.vtr"));
#pragma once

#include <string>

#include "vitrine/audit_log.h"

namespace vitrine {

/// Returns where a log's manifest stands: `log_path`, or the file that it links to, and
/// ".manifest.json". A new VtrLog and redact_vtr() remove a manifest there when their log takes its
/// name.
VITRINE_API std::string manifest_path(const std::string& log_path);

/// The manifest of a log, one line of JSON. Verifies the log first; the same log and key give the
/// same bytes. An open log has one too, which says that the log is open. Throws kBadFile where the
/// log is broken, changes meanwhile or names a file's hash that is no SHA-256, kInvalidArgument
/// where it is sealed with another key than `key`, kUnsupported where its head names so much that
/// the manifest would have more than 8 MiB, kIo. Thread-safe.
VITRINE_API std::string seal_manifest(const std::string& log_path, const SealKey& key);

/// seal_manifest() into the file `target`, which appears whole or not at all.
VITRINE_API void write_manifest(const std::string& log_path, const SealKey& key,
                                const std::string& target);

/// Checks the manifest in the file `manifest` against the log: its signature is by the key in the
/// log's head, its subject is the log's file, and it says of the run what the log says. `log` is
/// verify_vtr()'s answer for `log_path`. What a later version adds to a manifest is ignored. Throws
/// kBadFile with one line (file, field, what was found and what was expected), kIo. Thread-safe.
VITRINE_API void verify_manifest(const VtrReport& log, const std::string& log_path,
                                 const std::string& manifest);

}  // namespace vitrine
