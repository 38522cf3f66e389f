// SPDX-License-Identifier: Apache-2.0
// What a log's manifest says, as an in-toto statement.
#pragma once

#include <string>

#include "vitrine/audit_log.h"

namespace vitrine::audit {

inline constexpr char kStatementMediaType[] = "application/vnd.in-toto+json";
inline constexpr char kStatementType[] = "https://in-toto.io/Statement/v1";
/// A type needs a URI that nobody else can mean, and this one needs no domain. The UUID is of this
/// major version of the predicate; another one gets another.
inline constexpr char kPredicateType[] =
    "urn:uuid:a17a9467-eb9e-4578-ba74-2f472d112b2e#vitrine-run-v1";

/// Hashes of a whole file, in hexadecimal.
struct FileDigests {
  std::string sha256, blake2b;  // BLAKE2b with 64 bytes, as b2sum prints it
};
/// Hashes a file. Throws kIo.
FileDigests digest_file(const std::string& path);

/// Returns the statement, without spaces. Throws kBadFile where a file's hash in the head is no
/// SHA-256.
std::string statement_text(const std::string& log_path, const FileDigests& digests,
                           const VtrReport& log);

/// Removes a log's manifest, where another log takes the name. What cannot be removed stays; it
/// won't fit the new log, and verification says so.
void remove_manifest(const std::string& log_path) noexcept;

}  // namespace vitrine::audit
