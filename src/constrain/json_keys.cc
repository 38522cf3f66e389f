// SPDX-License-Identifier: Apache-2.0
// Keys of objects: which may come, and what value each has.
#include <algorithm>
#include <bit>

#include "core/utf8.h"
#include "json_machine.h"

namespace vitrine::constrain {

namespace {

/// Keys that may come beyond those that must.
uint64_t slack(const ObjectShape& shape, const Frame& frame) {
  if (shape.max == kUnbounded) return kUnbounded;
  return shape.max - frame.count - frame.required_left -
         static_cast<uint32_t>(std::popcount(frame.needs));
}

}  // namespace

void JsonMachine::begin_object(ShapeId id, const Config& config, Configs& out) {
  const ObjectShape& shape = grammar_.object(id);
  Frame frame;
  frame.parent = config.frame;
  frame.inside = keeps_text(config.frame);
  frame.is_object = true;
  frame.shape = id;
  frame.required_left = shape.num_required;
  frame.needs = (1U << shape.needs.size()) - 1;
  const size_t words = shape.allowed.size();
  if (words > 0) {
    auto* seen = static_cast<uint64_t*>(arena().allocate(words * sizeof(uint64_t)));
    std::fill(seen, seen + words, 0);
    frame.seen = seen;
  }
  Config next;
  next.kind = Config::kFirstKey;
  next.frame = make_frame(frame);
  if (key_follows(*next.frame) || may_end_object(*next.frame)) add(out, next);
}

bool JsonMachine::may_end_object(const Frame& frame) const {
  return frame.required_left == 0 && frame.needs == 0 &&
         frame.count >= grammar_.object(frame.shape).min;
}

bool JsonMachine::named_allowed(const Frame& frame, size_t index) const {
  const ObjectShape& shape = grammar_.object(frame.shape);
  const uint64_t bit = uint64_t{1} << (index % 64);
  if (!(shape.allowed[index / 64] & bit)) return false;
  if ((frame.seen[index / 64] & bit) && !grammar_.keys_may_repeat()) return false;
  if (shape.order && !rank_fits(frame, shape.order->ranks[index])) return false;
  return shape.named[index].required || slack(shape, frame) > 0;
}

bool JsonMachine::rest_allowed(const Frame& frame) const {
  const ObjectShape& shape = grammar_.object(frame.shape);
  if (shape.order && !rank_fits(frame, shape.order->num_ranked())) return false;
  return shape.rest_keys != kEmptyNode && (frame.needs != 0 || slack(shape, frame) > 0);
}

bool JsonMachine::key_follows(const Frame& frame) const {
  const ObjectShape& shape = grammar_.object(frame.shape);
  if (frame.count >= shape.max) return false;
  if (rest_allowed(frame)) {
    if (shape.rest_is_open) return true;
    // The other keys may be used up.
    std::vector<std::string> used;
    for (const SeenLink* link = frame.others; link; link = link->before)
      used.emplace_back(link->text());
    const NodeId rest =
        used.empty()
            ? shape.rest_keys
            : pool_.all_of(shape.rest_keys, pool_.text_complement(pool_.literals(std::move(used))));
    if (pool_.is_live(rest)) return true;
  }
  for (size_t i = 0; i < shape.named.size(); ++i) {
    if (named_allowed(frame, i)) return true;
  }
  return false;
}

void JsonMachine::begin_key(const Config& config, Configs& out) {
  const Frame& frame = *config.frame;
  const ObjectShape& shape = grammar_.object(frame.shape);
  Config next;
  next.kind = Config::kKey;
  next.frame = &frame;
  next.low = 0;
  next.high = static_cast<uint32_t>(shape.named.size());
  next.state = rest_allowed(frame) ? shape.rest_keys : kEmptyNode;
  if (next.state != kEmptyNode && slack(shape, frame) == 0) {  // it must be one that is needed
    next.state = pool_.all_of(next.state, shape.needs[0].keys);
  }
  if (next.state != kEmptyNode && !shape.rest_is_open && frame.others &&
      !grammar_.keys_may_repeat()) {
    std::vector<std::string> used;
    for (const SeenLink* link = frame.others; link; link = link->before)
      used.emplace_back(link->text());
    next.state = pool_.all_of(next.state, pool_.text_complement(pool_.literals(std::move(used))));
    if (!pool_.is_live(next.state)) next.state = kEmptyNode;
  }
  if (key_is_live(next)) add(out, next);
}

/// Some key that begins like this one may still come.
bool JsonMachine::key_is_live(const Config& config) {
  const EscapeState escape = EscapeState::unpack(config.escape);
  const CodeRanges ranges = escape_range(escape);
  const bool between = escape.phase == EscapeState::kNone;
  if (config.state != kEmptyNode) {
    if (between) return true;  // states of a row are live
    for (int i = 0; i < ranges.count; ++i) {
      if (pool_.range_is_live(config.state, ranges.ranges[static_cast<size_t>(i)])) return true;
    }
  }
  const ObjectShape& shape = grammar_.object(config.frame->shape);
  for (uint32_t i = config.low; i < config.high; ++i) {
    if (!named_allowed(*config.frame, i)) continue;
    if (between) return true;
    const std::string& name = *shape.named[i].name;
    if (name.size() == config.depth) continue;
    const Utf8Character next = read_utf8(name, config.depth);
    if (!next.is_valid) continue;  // an escape cannot stand within a character
    for (int k = 0; k < ranges.count; ++k) {
      const CodeRange range = ranges.ranges[static_cast<size_t>(k)];
      if (next.code_point >= range.low && next.code_point <= range.high) return true;
    }
  }
  return false;
}

/// One byte of the key itself, escapes resolved. False where no key goes on so.
bool JsonMachine::extend_key(Config& config, uint8_t byte) {
  const ObjectShape& shape = grammar_.object(config.frame->shape);
  const auto byte_at = [&](uint32_t index) {
    const std::string& name = *shape.named[index].name;
    return name.size() > config.depth ? static_cast<int>(static_cast<uint8_t>(name[config.depth]))
                                      : -1;
  };
  if (config.low < config.high) {
    uint32_t low = config.low, high = config.high;
    for (uint32_t from = low, to = high; from < to;) {  // the first that is not below
      const uint32_t middle = from + (to - from) / 2;
      if (byte_at(middle) < byte)
        from = low = middle + 1;
      else
        to = middle;
    }
    for (uint32_t from = low, to = high; from < to;) {  // the first that is above
      const uint32_t middle = from + (to - from) / 2;
      if (byte_at(middle) <= byte)
        from = middle + 1;
      else
        to = high = middle;
    }
    config.low = low;
    config.high = high;
  }
  ++config.depth;
  if (config.state != kEmptyNode) {
    config.state = pool_.step(config.state, byte);
    config.text = arena().make(TextLink{config.text, byte});
  }
  return config.state != kEmptyNode || config.low < config.high;
}

void JsonMachine::step_key(const Config& config, uint8_t byte, Configs& out) {
  const EscapeStep step = escape_step(EscapeState::unpack(config.escape), byte);
  Config next = config;
  next.escape = step.next.pack();
  switch (step.kind) {
    case EscapeStep::kDead: return;
    case EscapeStep::kClose: return end_key(config, out);
    case EscapeStep::kMore: break;
    case EscapeStep::kRawByte:
      if (!extend_key(next, byte)) return;
      break;
    case EscapeStep::kCodePoint: {
      uint8_t bytes[4];
      const int length = encode_utf8(step.code_point, bytes);
      for (int i = 0; i < length; ++i) {
        if (!extend_key(next, bytes[i])) return;
      }
      break;
    }
  }
  if (key_is_live(next)) add(out, next);
}

void JsonMachine::end_key(const Config& config, Configs& out) {
  const Frame& frame = *config.frame;
  const ObjectShape& shape = grammar_.object(frame.shape);
  if (config.low < config.high && shape.named[config.low].name->size() == config.depth) {
    if (named_allowed(frame, config.low)) {
      add_key(config, shape.named[config.low].value, true, config.low, 0, {}, out);
    }
    return;
  }
  if (config.state == kEmptyNode || !pool_.nullable(config.state)) return;
  const std::string key = text_of(config.text);
  if (!grammar_.keys_may_repeat()) {
    for (const SeenLink* link = frame.others; link; link = link->before) {
      if (link->text() == key) return;
    }
  }
  const ValueId value = grammar_.rest_value(shape, key);
  // Each condition on some key takes this one for itself or waits for another.
  uint32_t possible = 0;
  for (size_t i = 0; i < shape.needs.size(); ++i) {
    if ((frame.needs >> i & 1) && pool_.matches(shape.needs[i].keys, key)) possible |= 1U << i;
  }
  for (uint32_t met = possible;; met = (met - 1) & possible) {
    ValueId both = value;
    for (size_t i = 0; i < shape.needs.size(); ++i) {
      if (met >> i & 1) both = grammar_.conjunction(both, shape.needs[i].value);
    }
    if (grammar_.is_live(both) && (met != 0 || slack(shape, frame) > 0)) {
      add_key(config, both, false, 0, met, key, out);
    }
    if (met == 0) break;
  }
}

void JsonMachine::after_other_key(const Config& config, Configs& out) {
  const ObjectShape& shape = grammar_.object(config.frame->shape);
  Frame frame = *config.frame;
  ++frame.count;
  advance_rank(frame, false, 0);
  Config next;
  next.kind = Config::kColon;
  next.id = shape.rules.empty() ? kAnyValue : shape.combinations[0].value;
  next.frame = make_frame(frame);
  out.push_back(next);
}

void JsonMachine::add_key(const Config& config, ValueId value, bool named, size_t index,
                          uint32_t needs_met, std::string_view key, Configs& out) {
  const ObjectShape& shape = grammar_.object(config.frame->shape);
  Frame frame = *config.frame;
  ++frame.count;
  frame.needs &= ~needs_met;
  advance_rank(frame, named, index);
  if (frame.inside) frame.key = remember(nullptr, named ? *shape.named[index].name : key);
  if (named) {
    const size_t words = shape.allowed.size();
    auto* seen = static_cast<uint64_t*>(arena().allocate(words * sizeof(uint64_t)));
    std::copy(frame.seen, frame.seen + words, seen);
    seen[index / 64] |= uint64_t{1} << (index % 64);
    frame.seen = seen;
    if (shape.named[index].required) --frame.required_left;
  } else if (!grammar_.keys_may_repeat()) {
    frame.others = remember(frame.others, key);
  }
  Config next;
  next.kind = Config::kColon;
  next.id = value;
  next.frame = make_frame(frame);
  add(out, next);
}

}  // namespace vitrine::constrain
