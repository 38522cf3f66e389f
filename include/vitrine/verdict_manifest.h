// SPDX-License-Identifier: Apache-2.0
// The room `gates`: a verdict that somebody signs, bound to the records that it was made from.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrine/audit_log.h"
#include "vitrine/gates.h"

namespace vitrine {

/// Returns a gate's verdict as an in-toto statement (v1) in a DSSE envelope, one line of JSON: the
/// hashes of both evaluations and of those of noise, of the suite, the gate with its text, the
/// targets with the hashes of their files, options, kernels and instruction set, and each rule's
/// result. Runs the gate itself; throws what run_gate() does. The same arguments give the same
/// bytes. Thread-safe.
VITRINE_API std::string seal_verdict(const GateFile& gate, const Evaluation& baseline,
                                     const Evaluation& candidate, std::span<const Evaluation> noise,
                                     const SealKey& key);

/// What a verified manifest says.
struct VerifiedVerdict {
  PublicKey signer = {};      ///< whose signature it has
  bool is_given_key = false;  ///< that is the key that the caller named
  Verdict verdict = {};       ///< computed again from the records
  GateFile gate = {};         ///< the one in the manifest
};

/// Checks a manifest without running a model: its signature (by `key`, or where none is given by
/// the key that it names), that the files are those that it names, and that the gate in it gives
/// the verdict in it again. Throws kBadFile (naming file, field, what was found and expected), kIo,
/// and what read_evaluation() throws. Thread-safe.
VITRINE_API VerifiedVerdict verify_verdict(const std::string& manifest, const std::string& baseline,
                                           const std::string& candidate,
                                           std::span<const std::string> noise = {},
                                           const std::optional<PublicKey>& key = {});

}  // namespace vitrine
