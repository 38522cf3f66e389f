// SPDX-License-Identifier: Apache-2.0
#include "state_text.h"

#include <algorithm>
#include <vector>

#include "core/utf8.h"
#include "json_value.h"

namespace vitrine::constrain {

namespace {

constexpr int kMaxTextDepth = 32;  // of expressions
constexpr size_t kMaxMembers = 8;  // of a list of alternatives
constexpr size_t kMaxLevels = 16;  // of a place in JSON
constexpr size_t kMaxReading = 1000;
constexpr size_t kMaxKey = 64;  // bytes

std::string hex(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {kDigits[byte >> 4], kDigits[byte & 15]};
}
bool is_printable(int byte) { return byte > 0x20 && byte < 0x7F; }

/// Calls `put` with the first and last byte of each run.
template <typename Put>
void for_each_run(const ByteSet& bytes, Put&& put) {
  for (int first = 0; first < 256; ++first) {
    if (!bytes.contains(static_cast<uint8_t>(first))) continue;
    int last = first;
    while (last < 255 && bytes.contains(static_cast<uint8_t>(last + 1))) ++last;
    put(first, last);
    first = last;
  }
}

class ExpressionText {
 public:
  ExpressionText(const RegexPool& pool, size_t limit) : pool_(pool), limit_(limit) {}

  std::string of(NodeId id) {
    put(id, Binding::kNone, 0);
    return is_full() ? out_ + "…" : out_;
  }

 private:
  enum class Binding : uint8_t { kNone, kSequence, kRepeat };  // what binds tighter needs brackets

  bool is_full() const { return out_.size() >= limit_; }

  void put(NodeId id, Binding around, int depth) {
    if (is_full()) return;
    const Node& node = pool_.node(id);
    if (depth > kMaxTextDepth) {
      out_ += "(…)";
      return;
    }
    switch (node.kind) {
      case NodeKind::kEmpty: out_ += "<nothing>"; break;
      case NodeKind::kEpsilon: out_ += "()"; break;
      case NodeKind::kBytes: put_class(pool_.byte_set(node)); break;
      case NodeKind::kCat: {
        const bool is_inner = around == Binding::kRepeat;
        if (is_inner) out_ += '(';
        for (; pool_.node(id).kind == NodeKind::kCat && !is_full(); id = pool_.node(id).b) {
          put(pool_.node(id).a, Binding::kSequence, depth + 1);
        }
        put(id, Binding::kSequence, depth + 1);
        if (is_inner) out_ += ')';
        break;
      }
      case NodeKind::kOr: put_list(pool_.list(node), '|', around, depth); break;
      case NodeKind::kAnd: put_list(pool_.list(node), '&', around, depth); break;
      case NodeKind::kNot: out_ += "!(…)"; break;
      case NodeKind::kRepeat: put_repeat(id, node, depth); break;
      case NodeKind::kLiterals: put_literals(id, around); break;
      case NodeKind::kNumber: out_ += "<number>"; break;
      case NodeKind::kWalk: out_ += "<format>"; break;
      case NodeKind::kJsonBody:
        if (node.b != 0) out_ += "<escape>";
        put(node.a, Binding::kSequence, depth + 1);
        out_ += '"';
        break;
    }
  }

  void put_byte(uint8_t byte) {
    if (byte == ' ') {
      out_ += ' ';
    } else if (!is_printable(byte)) {
      out_ += "\\x" + hex(byte);
    } else {
      if (std::string_view("\\[](){}|&*+?.!<>^$-").find(static_cast<char>(byte)) !=
          std::string_view::npos) {
        out_ += '\\';
      }
      out_ += static_cast<char>(byte);
    }
  }

  void put_class(const ByteSet& bytes) {
    if (bytes == ByteSet::range(0, 255)) {
      out_ += '.';
      return;
    }
    size_t count = 0;
    for_each_run(bytes,
                 [&](int first, int last) { count += static_cast<size_t>(last - first) + 1; });
    if (count > 1) out_ += '[';
    for_each_run(bytes, [&](int first, int last) {
      put_byte(static_cast<uint8_t>(first));
      if (last > first + 1) out_ += '-';
      if (last > first) put_byte(static_cast<uint8_t>(last));
    });
    if (count > 1) out_ += ']';
  }

  void put_list(std::span<const NodeId> members, char sign, Binding around, int depth) {
    const bool is_inner = around != Binding::kNone;
    if (is_inner) out_ += '(';
    for (size_t i = 0; i < members.size() && !is_full(); ++i) {
      if (i > 0) out_ += sign;
      if (i == kMaxMembers) {
        out_ += "…";
        break;
      }
      put(members[i], Binding::kSequence, depth + 1);
    }
    if (is_inner) out_ += ')';
  }

  void put_repeat(NodeId id, const Node& node, int depth) {
    if (node.a == pool_.any_char()) {
      out_ += '.';
    } else {
      put(node.a, Binding::kRepeat, depth + 1);
    }
    if (id == pool_.any_text()) {
      out_ += '*';
    } else if (node.high == kUnbounded && node.low <= 1) {
      out_ += node.low == 0 ? '*' : '+';
    } else if (node.low == 0 && node.high == 1) {
      out_ += '?';
    } else {
      out_ += '{' + std::to_string(node.low) + ',' +
              (node.high == kUnbounded ? "" : std::to_string(node.high)) + '}';
    }
  }

  void put_literals(NodeId id, Binding around) {
    const Node& node = pool_.node(id);
    const bool is_inner = node.high - node.low > 1 || around == Binding::kRepeat;
    size_t count = 0;
    if (is_inner) out_ += '(';
    pool_.any_literal(id, [&](std::string_view rest) {
      if (count > 0) out_ += '|';
      if (count++ == kMaxMembers || is_full()) {
        out_ += "…";
        return true;
      }
      for (const char byte : rest.substr(0, limit_)) put_byte(static_cast<uint8_t>(byte));
      return false;
    });
    if (is_inner) out_ += ')';
  }

  const RegexPool& pool_;
  const size_t limit_;
  std::string out_;
};

}  // namespace

std::string byte_set_text(const ByteSet& bytes) {
  const auto name = [](int byte) -> std::string {
    if (is_printable(byte)) return std::string("'") + static_cast<char>(byte) + "'";
    return byte == ' ' ? "space" : "0x" + hex(static_cast<uint8_t>(byte));
  };
  std::string out;
  for_each_run(bytes, [&](int first, int last) {
    if (!out.empty()) out += ' ';
    out += name(first);
    if (last > first) out += (last > first + 1 ? "-" : " ") + name(last);
  });
  return out;
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (const char at : text) {
    const auto byte = static_cast<uint8_t>(at);
    const std::string one =
        is_printable(byte) || byte == ' ' ? std::string(1, at) : "\\x" + hex(byte);
    if (out.size() + one.size() > limit) return out + "…";
    out += one;
  }
  return out;
}

std::string printable_utf8(std::string_view text, size_t limit) {
  std::string out;
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
    size = read_utf8(text, at).size;
    const std::string_view character = text.substr(at, size);
    const bool is_ascii = static_cast<uint8_t>(text[at]) < 0x80;
    const std::string one = is_ascii ? printable(character, 4) : std::string(character);
    if (out.size() + one.size() > limit) return out + "…";
    out += one;
  }
  return out;
}

std::string bounded(std::string reading) {
  if (reading.size() <= kMaxReading) return reading;
  size_t end = kMaxReading;
  while (is_continuation(reading[end])) --end;  // a whole character
  return reading.substr(0, end) + "…";
}

std::string regex_text(const RegexPool& pool, NodeId id, size_t limit) {
  return ExpressionText(pool, limit).of(id);
}

std::string json_place(std::string_view text,
                       const std::function<bool(std::string_view)>& is_named) {
  struct Level {
    bool is_object = false;
    size_t index = 0;
    std::string_view key;  // with its quotes; empty before it has been read
  };
  std::vector<Level> levels;
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '{': levels.emplace_back().is_object = true; break;
      case '[': levels.emplace_back(); break;
      case '}':
      case ']':
        if (!levels.empty()) levels.pop_back();
        break;
      case ',':
        if (levels.empty()) break;
        ++levels.back().index;
        levels.back().key = {};
        break;
      case '"': {
        const size_t begin = at++;
        while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
        const bool is_key = !levels.empty() && levels.back().is_object && levels.back().key.empty();
        if (is_key && at < text.size()) levels.back().key = text.substr(begin, at + 1 - begin);
        break;
      }
      default: break;
    }
  }
  std::string out;
  const size_t shown = std::min(levels.size(), kMaxLevels);
  if (shown < levels.size()) out = "…";
  for (size_t i = levels.size() - shown; i < levels.size(); ++i) {
    const Level& level = levels[i];
    if (!level.is_object) {
      out += '/' + std::to_string(level.index);
    } else if (!level.key.empty()) {
      const std::string key = parse_json(level.key).text;
      out += is_named(key) ? printable_utf8(pointer_token(key), kMaxKey) : "/*";
    }
  }
  return out;
}

}  // namespace vitrine::constrain
