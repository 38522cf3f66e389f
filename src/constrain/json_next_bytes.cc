// SPDX-License-Identifier: Apache-2.0
// Which bytes may come next: walks through a vocabulary try no others.
#include <algorithm>

#include "json_machine.h"

namespace vitrine::constrain {

namespace {

ByteSet set_of(std::string_view bytes) {
  ByteSet set;
  for (const char byte : bytes) set.add(static_cast<uint8_t>(byte));
  return set;
}

const ByteSet kAll = ByteSet::range(0, 255);
const ByteSet kSpace = set_of(" \n\t\r");
const ByteSet kEnds = set_of(",]}");
const ByteSet kEscaped = ByteSet::range(0, 0x1F) | set_of("\"\\");

}  // namespace

ByteSet JsonMachine::next_bytes(const Configs& configs) {
  ByteSet out;
  for (const Config& config : configs) add_next_bytes(config, out);
  return out;
}

ByteSet JsonMachine::taken_bytes(const Configs& configs) {
  const ByteSet possible = next_bytes(configs);
  const Mark before = mark();
  ByteSet out;
  Configs next;
  for (int byte = 0; byte < 256; ++byte) {
    if (!possible.contains(static_cast<uint8_t>(byte))) continue;
    step(configs, static_cast<uint8_t>(byte), next);
    if (!next.empty()) out.add(static_cast<uint8_t>(byte));
    return_to(before);
  }
  return out;
}

bool JsonMachine::plain_bytes(const Configs& configs, ByteSet& out) {
  return std::all_of(configs.begin(), configs.end(),
                     [&](const Config& config) { return add_plain_bytes(config, out); });
}

bool JsonMachine::add_plain_bytes(const Config& config, ByteSet& out) {
  NodeId content = kEmptyNode;
  ByteSet characters;
  if (config.kind == Config::kKey) {
    if (config.escape != 0) return false;
    content = config.state;
    const ObjectShape& shape = grammar_.object(config.frame->shape);
    for (uint32_t i = config.low; i < config.high; ++i) {
      const std::string& name = *shape.named[i].name;
      if (name.size() > config.depth) {
        characters.add(static_cast<uint8_t>(name[config.depth]));
      } else {
        out.add('"');
      }
    }
  } else if (config.kind == Config::kScalar &&
             pool_.node(config.state).kind == NodeKind::kJsonBody) {
    const Node body = pool_.node(config.state);
    if (body.b != 0) return false;
    content = body.a;
  } else {
    add_next_bytes(config, out);
    return true;
  }
  if (content != kEmptyNode) {
    characters = characters | pool_.row_bytes(content);
    if (pool_.nullable(content)) out.add('"');
  }
  if (!(characters & kEscaped).empty()) return false;
  out = out | characters;
  return true;
}

bool JsonMachine::take_spaces(const Configs& configs) const {
  if (grammar_.whitespace() != JsonWhitespace::kRfc) return false;
  return std::none_of(configs.begin(), configs.end(), [](const Config& config) {
    return config.kind == Config::kScalar || config.kind == Config::kKey;
  });
}

void JsonMachine::add_next_bytes(const Config& config, ByteSet& out) {
  const bool is_spaced = grammar_.whitespace() == JsonWhitespace::kRfc ||
                         (grammar_.whitespace() == JsonWhitespace::kOneLine && config.may_space);
  if (config.kind == Config::kScalar) {
    out = out | pool_.row_bytes(config.state);
    if (!pool_.nullable(config.state)) return;
    out = out | kEnds;
    if (grammar_.whitespace() == JsonWhitespace::kRfc) out = out | kSpace;
    return;
  }
  if (config.kind == Config::kKey) {
    if (config.escape != 0 || (config.state != kEmptyNode && !pool_.has_row(config.state))) {
      out = kAll;
      return;
    }
    if (config.state != kEmptyNode) out = out | pool_.row_bytes(config.state);
    out.add('"');
    out.add('\\');
    const ObjectShape& shape = grammar_.object(config.frame->shape);
    for (uint32_t i = config.low; i < config.high; ++i) {
      const std::string& name = *shape.named[i].name;
      if (name.size() > config.depth) out.add(static_cast<uint8_t>(name[config.depth]));
    }
    return;
  }
  if (is_spaced) out = out | kSpace;
  switch (config.kind) {
    case Config::kValue: {
      const Value& value = grammar_.value(config.id);
      if (!value.objects.empty()) out.add('{');
      if (!value.arrays.empty()) out.add('[');
      if (config.low != 0) return;
      out = out | pool_.row_bytes(config.state != 0 ? config.state : value.scalar);
      return;
    }
    case Config::kFirstKey: out.add('"'); [[fallthrough]];
    case Config::kAfterValue:
    case Config::kFirstItem: out = out | kEnds; return;
    case Config::kNextKey: out.add('"'); return;
    default: out.add(':'); return;
  }
}

}  // namespace vitrine::constrain
