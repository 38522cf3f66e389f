// SPDX-License-Identifier: Apache-2.0
// DSSE: a payload, its type, and signatures over both, as one JSON object
// (https://github.com/secure-systems-lab/dsse).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bytes.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit {

/// Returns what a signature is over: type and payload with their lengths, so that neither can be
/// taken for the other.
std::string pre_authentication_encoding(std::string_view payload_type, std::string_view payload);

/// Returns the envelope with one signature over pre_authentication_encoding().
std::string envelope_text(std::string_view payload_type, std::string_view payload,
                          std::string_view key_id, ByteSpan signature);

/// Returns the envelope with one Ed25519 signature, whose `keyid` is the public key in hexadecimal,
/// and a newline.
std::string seal_envelope(std::string_view payload_type, std::string_view payload,
                          const SealKey& key);

struct Envelope {
  std::string payload_type, payload;  // decoded
  std::vector<Bytes> signatures;

  /// Returns true where one of the signatures is by this key. The `keyid` does not count, since it
  /// is not signed.
  bool is_signed_by(const PublicKey& key) const;
};

/// Parses an envelope. Throws kBadFile (naming `file` and the field) for what is no envelope.
Envelope parse_envelope(std::string_view text, const std::string& file);

}  // namespace vitrine::audit
