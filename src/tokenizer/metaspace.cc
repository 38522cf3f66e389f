// SPDX-License-Identifier: Apache-2.0
#include "metaspace.h"

#include "unicode.h"

namespace vitrine::tokenizer {

Metaspace Metaspace::load(const JsonNode& node) {
  Metaspace metaspace;
  const JsonNode replacement = node.at("replacement");
  metaspace.replacement = replacement.as_string();
  size_t pos = 0;
  if (!metaspace.replacement.empty()) next_code_point(metaspace.replacement, pos);
  if (pos == 0 || pos != metaspace.replacement.size()) replacement.fail_type("one character");
  if (const JsonNode scheme = node.get("prepend_scheme"); !scheme.is_null()) {
    const std::string& name = scheme.as_string();
    if (name == "first") {
      metaspace.scheme = Scheme::kFirst;
    } else if (name == "never") {
      metaspace.scheme = Scheme::kNever;
    } else if (name != "always") {
      scheme.fail(quote(name), "'always', 'first' or 'never'");
    }
  }
  const JsonNode prefix = node.get("add_prefix_space");  // the older spelling
  if (!prefix.as_bool_or(true) && metaspace.scheme != Scheme::kNever) {
    prefix.fail("false", "true, or prepend_scheme 'never' beside it");
  }
  metaspace.split = node.get("split").as_bool_or(true);
  return metaspace;
}

}  // namespace vitrine::tokenizer
