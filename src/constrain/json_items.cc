// SPDX-License-Identifier: Apache-2.0
// Items of arrays that are compared with one another (uniqueItems, and its negation).
#include <algorithm>

#include "char_ranges.h"
#include "core/utf8.h"
#include "json_machine.h"

namespace vitrine::constrain {

std::string JsonMachine::item_text(const TextLink* text) const {
  // The characters so far; an escape that has not ended is none yet.
  const std::string spelling = text_of(text);
  std::string out;
  EscapeState escape;
  for (size_t i = 1; i < spelling.size(); ++i) {
    const EscapeStep step = escape_step(escape, static_cast<uint8_t>(spelling[i]));
    escape = step.next;
    if (step.kind == EscapeStep::kRawByte) out += spelling[i];
    if (step.kind != EscapeStep::kCodePoint) continue;
    uint8_t bytes[4];
    const int length = encode_utf8(step.code_point, bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
  }
  return out;
}

/// Within a string that must differ from others: some string that begins so is not used.
bool JsonMachine::item_is_live(const Config& config) {
  const Node body = pool_.node(config.state);
  if (body.kind != NodeKind::kJsonBody || !config.frame->others) return true;
  if (pool_.is_infinite(body.a)) return true;
  const std::string typed = item_text(config.text);
  std::vector<std::string> rests;
  for (const SeenLink* link = config.frame->others; link; link = link->before) {
    if (link->text()[0] != '"' || !link->text().substr(1).starts_with(typed)) continue;
    rests.emplace_back(link->text().substr(1 + typed.size()));
    if (!pool_.matches(body.a, rests.back())) rests.pop_back();  // an item under another schema
  }
  if (rests.empty()) return true;
  const EscapeState escape = EscapeState::unpack(body.b);
  if (escape.phase == EscapeState::kNone) {
    return pool_.count_strings(body.a, rests.size() + 1) > rests.size();
  }
  // With an escape begun, only strings that it can become count.
  const CodeRanges ranges = escape_range(escape);
  const auto can_become = [&](const std::string& rest) {
    size_t at = 0;
    const uint32_t code = decode_utf8(rest, at);
    return std::any_of(
        ranges.ranges.begin(), ranges.ranges.begin() + ranges.count,
        [code](const CodeRange& range) { return code >= range.low && code <= range.high; });
  };
  if (std::none_of(rests.begin(), rests.end(), can_become)) return true;
  if (pool_.node(body.a).kind == NodeKind::kLiterals) {
    return pool_.any_literal(body.a, [&](std::string_view left) {
      const std::string text(left);
      return !text.empty() && can_become(text) &&
             std::find(rests.begin(), rests.end(), text) == rests.end();
    });
  }
  const NodeId left = pool_.all_of(body.a, pool_.text_complement(pool_.literals(std::move(rests))));
  return pool_.is_live(pool_.json_body(left, escape));
}

/// A number as Decimal::text spells it, a string's characters behind one quote.
std::string JsonMachine::scalar_text(const TextLink* text) const {
  std::string spelling = text_of(text);
  if (spelling[0] == '"') return "\"" + item_text(text);
  const auto number = parse_decimal(spelling);
  return number ? number->text() : spelling;
}

/// The same text for containers that are equal: keys sorted, each value in one spelling.
std::string JsonMachine::container_text(const Frame& frame) {
  std::vector<std::string> parts;
  for (const MemberLink* member = frame.members; member; member = member->before) {
    std::string part = member->key ? json_quote(member->key->text()) + ":" : "";
    const std::string_view value = member->value->text();
    part += value[0] == '"' ? json_quote(value.substr(1)) : std::string(value);
    parts.push_back(std::move(part));
  }
  if (frame.is_object) {
    std::sort(parts.begin(), parts.end());
  } else {
    std::reverse(parts.begin(), parts.end());
  }
  std::string out = frame.is_object ? "{" : "[";
  for (const std::string& part : parts) out += (out.size() > 1 ? "," : "") + part;
  return out + (frame.is_object ? "}" : "]");
}

void JsonMachine::end_container(const Frame& frame, Configs& out) {
  Config after;
  after.frame = frame.parent;
  if (!frame.inside) return end_value(after, out);
  const std::string text = container_text(frame);
  end_value(after, out, &text);
}

/// Remembers a value that has ended. False where an item is one too many of its like.
bool JsonMachine::keep_value(const Frame& before, std::string text, Config& next) {
  Frame frame = before;
  if (!frame.is_object) {
    const ArrayShape& shape = grammar_.array(frame.shape);
    bool is_known = false;
    for (const SeenLink* link = frame.others; link && !is_known; link = link->before) {
      is_known = link->text() == text;
    }
    if (is_known && shape.unique) return false;
    frame.repeated = frame.repeated || (is_known && shape.repeated);
    if (shape.unique || (shape.repeated && !frame.repeated)) {
      frame.others = remember(frame.others, text);
    }
  }
  if (frame.inside) {
    frame.members = arena().make(MemberLink{frame.members, frame.key, remember(nullptr, text)});
  }
  next.frame = make_frame(frame);
  return true;
}

}  // namespace vitrine::constrain
