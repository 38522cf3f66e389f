// SPDX-License-Identifier: Apache-2.0
#include "kv/codec.h"

#include "core/registry.h"

namespace vitrine::kv {

namespace {

core::Registry<std::string, KvCodec>& registry() {
  static core::Registry<std::string, KvCodec> codecs("KV codec");
  return codecs;
}

}  // namespace

bool register_codec(const KvCodec& codec) { return registry().add(std::string(codec.name), codec); }

const KvCodec& find_codec(std::string_view name) {
  if (const KvCodec* found = registry().find(name)) return *found;
  std::string known;
  for (const std::string& each : codec_names()) known += (known.empty() ? "" : ", ") + each;
  throw Error(ErrorKind::kInvalidArgument, "engine option 'kv_codecs' names '" + std::string(name) +
                                               "'; expected one of: " + known);
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const KvCodec& codec : registry().entries()) names.emplace_back(codec.name);
  return names;
}

}  // namespace vitrine::kv
