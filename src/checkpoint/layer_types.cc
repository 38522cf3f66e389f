// SPDX-License-Identifier: Apache-2.0
#include "layer_types.h"

#include "text.h"

namespace vitrine::checkpoint {

std::vector<std::string> read_layer_types(const Fields& fields, std::string_view name,
                                          int64_t layers, std::string_view one,
                                          std::string_view other, bool is_required) {
  std::vector<std::string> types = fields.strings(name);
  if (types.empty() && !is_required) return types;
  if (std::ssize(types) != layers) {
    fields.bad(name, "one type for each of " + std::to_string(layers) + " layers, found " +
                         std::to_string(types.size()));
  }
  for (const std::string& type : types) {
    if (type == one || type == other) continue;
    throw Error(ErrorKind::kUnsupported, fields.place() + ": field '" + std::string(name) +
                                             "' holds " + quote_text(type) + "; expected " +
                                             quote_text(std::string(one)) + " or " +
                                             quote_text(std::string(other)));
  }
  return types;
}

}  // namespace vitrine::checkpoint
