// SPDX-License-Identifier: Apache-2.0
// Private to the room: a model signature's layers, from the Sigstore bundle to the in-toto
// statement that names the files.
#pragma once

#include <string>
#include <vector>

#include "ec_key.h"
#include "vitrine/model_signature.h"

namespace vitrine::gates {

/// Returns the statement of a model's files, which come in the order in which they are signed:
/// fills in the model's root digest. The same model gives the same bytes.
std::string model_statement(SignedModel& model, bool allows_links);

/// Returns a bundle with the statement and the key's signature over it.
std::string sign_statement(const std::string& statement, const EcKey& key);

/// Reads a bundle, checks its signature with the key and that its statement holds together. Throws
/// kBadFile, naming `file` and the field.
SignedModel read_signed_model(const std::string& bundle, const EcKey& key, const std::string& file);

/// Returns true where a text begins as a bundle does: what may be replaced by one.
bool is_bundle(const std::string& text);

}  // namespace vitrine::gates
