// SPDX-License-Identifier: Apache-2.0
// Schemas of which some keyword cannot be kept exactly.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json_grammar.h"

namespace vitrine::constrain {

/// A schema's grammar. With SchemaOptions::lenient, what is refused is left out and told in
/// `weakened`, its pointer behind `place`; what is malformed, or too much all the same, throws.
std::unique_ptr<JsonGrammar> make_json_grammar(std::string_view schema,
                                               const SchemaOptions& options,
                                               const std::string& place,
                                               std::vector<Weakening>& weakened);

}  // namespace vitrine::constrain
