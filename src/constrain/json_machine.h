// SPDX-License-Identifier: Apache-2.0
// Follows JSON text under a grammar, byte by byte.
//
// A configuration is a place in a value and the containers around it. Where a schema leaves
// alternatives open, several configurations are alive side by side; each of them can be completed,
// so a byte is allowed where any of them takes it. Frames and links are immutable and shared: a
// fork or a step back copies nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "json_grammar.h"

namespace vitrine::constrain {

/// Memory given back all at once, back to a mark.
class Arena {
 public:
  struct Mark {
    size_t chunk = 0, used = 0;
  };
  Mark mark() const { return {chunk_, used_}; }
  void reset(Mark mark) {
    chunk_ = mark.chunk;
    used_ = mark.used;
  }
  /// Shared with another machine: nothing in it may be given back.
  bool is_sealed() const { return sealed_; }
  void seal() { sealed_ = true; }
  void* allocate(size_t bytes);
  template <typename T>
  T* make(const T& value) {
    return new (allocate(sizeof(T))) T(value);
  }

 private:
  static constexpr size_t kFirstChunk = size_t{1} << 12, kChunk = size_t{1} << 16;
  std::vector<std::pair<std::unique_ptr<std::byte[]>, size_t>> chunks_;
  size_t chunk_ = 0, used_ = 0;
  bool sealed_ = false;
};

/// Bytes read so far of a key or value, the last first.
struct TextLink {
  const TextLink* before = nullptr;
  uint8_t byte = 0;
};
/// Keys or items that a container already has, the last first.
struct SeenLink {
  const SeenLink* before = nullptr;
  const char* data = nullptr;
  size_t size = 0;
  std::string_view text() const { return {data, size}; }
};

/// Members or items that a container has so far, the last first; each in one spelling.
struct MemberLink {
  const MemberLink* before = nullptr;
  const SeenLink* key = nullptr;  // object
  const SeenLink* value = nullptr;
};

struct Frame {
  const Frame* parent = nullptr;
  const uint64_t* seen = nullptr;    // object: bits over the shape's named keys
  const SeenLink* others = nullptr;  // object: other keys; array of unique items: its items
  bool is_object = false;
  ShapeId shape = 0;
  uint32_t count = 0;             // keys or items begun
  uint32_t required_left = 0;     // object
  uint32_t needs = 0;             // object: bits of needs not yet met
  uint32_t rank = 0;              // object: the lowest that a key may have, where keys are ordered
  uint32_t matched[4] = {};       // array: items that each condition counted
  bool repeated = false;          // array: two of its items are equal
  bool inside = false;            // within an item, or an item itself, that is compared with others
  const SeenLink* key = nullptr;  // object that is inside: the key whose value is read
  const MemberLink* members = nullptr;  // container that is inside
  // Not null: no container, but several whose next value is the same; it is read once for all.
  const Frame* const* joined = nullptr;
  uint32_t num_joined = 0;
  uint64_t serial = 0;  // unlike any other frame's of the machine
};

struct Config {
  enum Kind : uint8_t {
    kValue,       // before a value: id
    kScalar,      // within a scalar: state
    kFirstKey,    // behind '{'
    kNextKey,     // behind ',' in an object
    kKey,         // within a key
    kColon,       // behind a key; id: its value
    kFirstItem,   // behind '[', where the array may be empty
    kAfterValue,  // behind a value within `frame`, or at the end
  } kind = kValue;
  bool may_space = false;  // one more space is allowed here (JsonWhitespace::kOneLine)
  uint32_t id = 0;         // ValueId
  NodeId state = 0;        // kScalar; kKey: what the rest of a key that is not named may be
  uint32_t low = 0, high = 0, depth = 0;  // kKey: the named keys that begin like this one
                                          // kValue: low is 1 where it may be no scalar
  uint32_t escape = 0;                    // kKey: packed EscapeState
  const TextLink* text = nullptr;
  const Frame* frame = nullptr;
};

using Configs = std::vector<Config>;

class JsonMachine {
 public:
  explicit JsonMachine(JsonGrammar& grammar)
      : grammar_(grammar), pool_(grammar.pool()), arenas_{std::make_shared<Arena>()} {}

  void start(Configs& out);
  /// Appends what `config` becomes with one more byte.
  void step(const Config& config, uint8_t byte, Configs& out);
  /// Appends what `configs` become with one more byte, without duplicates.
  void step(const Configs& configs, uint8_t byte, Configs& out);
  /// A superset of the bytes that step() takes.
  ByteSet next_bytes(const Configs& configs);
  /// Those bytes.
  ByteSet taken_bytes(const Configs& configs);
  /// The first again, but for the backslash of an escape that only spells what is there without it.
  /// False where an escape is all that is left, or has begun.
  bool plain_bytes(const Configs& configs, ByteSet& out);
  /// Returns true where only a quote leads out of the string or the key that one stands in.
  bool is_in_string(const Configs& configs) const;
  bool is_complete(const Config& config) const;
  bool is_complete(const Configs& configs) const;

  Arena& arena() { return *arenas_.back(); }
  /// Where the memory stands; what was made since is given back by return_to.
  struct Mark {
    size_t arena = 0;
    Arena::Mark mark;
  };
  Mark mark() const { return {arenas_.size() - 1, arenas_.back()->mark()}; }
  void return_to(Mark mark);
  /// A machine that shares what has been made so far; from now on both make their own.
  JsonMachine fork();

  JsonGrammar& grammar() { return grammar_; }
  /// The places behind a value of which no text was kept, within `frame`.
  void after_value(const Frame* frame, Configs& out) {
    Config config;
    config.frame = frame;
    end_value(config, out);
  }
  /// Appends the place behind a key that is not named, as its own text does not matter: the object
  /// has one value for all such keys.
  void after_other_key(const Config& config, Configs& out);
  /// White space changes none of these places.
  bool take_spaces(const Configs& configs) const;
  /// True for an array whose items must differ: the text of an item is kept.
  bool keeps_text(const Frame* frame) const {
    if (!frame || frame->joined) return false;
    if (frame->inside) return true;
    if (frame->is_object) return false;
    const ArrayShape& shape = grammar_.array(frame->shape);
    return shape.unique || (shape.repeated && !frame->repeated);
  }
  /// True for an array whose items must differ from those before them.
  bool is_unique(const Frame* frame) const {
    return frame && !frame->joined && !frame->is_object && grammar_.array(frame->shape).unique;
  }
  /// A key may be this named one: it has a value and there is room for it.
  bool named_allowed(const Frame& frame, size_t index) const;
  /// A key that is not named may follow.
  bool rest_allowed(const Frame& frame) const;
  std::string text_of(const TextLink* text) const;
  /// In words, the first `most`; `text` is what has been read.
  std::vector<std::string> readings(const Configs& configs, std::string_view text,
                                    size_t most) const;
  /// The characters of a string item that `text` spells, with its opening quote.
  std::string item_text(const TextLink* text) const;

 private:
  std::string reading(const Config& config) const;
  std::string container_reading(const Frame& frame) const;
  void add_next_bytes(const Config& config, ByteSet& out);
  bool add_plain_bytes(const Config& config, ByteSet& out);
  void add(Configs& out, const Config& config);
  void join_values(Configs& configs);
  bool take_space(const Config& config, uint8_t byte, Configs& out);
  void begin_value(const Config& config, uint8_t byte, Configs& out);
  void go_on_scalar(const Config& config, NodeId state, uint8_t byte, Configs& out);
  void end_value(const Config& config, Configs& out, const std::string* container = nullptr);
  void end_container(const Frame& frame, Configs& out);
  bool keep_value(const Frame& before, std::string text, Config& next);
  std::string scalar_text(const TextLink* text) const;
  static std::string container_text(const Frame& frame);
  bool item_is_live(const Config& config);
  void begin_array(ShapeId shape, const Config& config, Configs& out);
  void begin_items(const Frame& frame, Configs& out);
  void begin_object(ShapeId shape, const Config& config, Configs& out);
  bool key_follows(const Frame& frame) const;
  bool rank_fits(const Frame& frame, uint32_t rank) const;
  void advance_rank(Frame& frame, bool is_named, size_t index) const;
  bool item_follows(const Frame& frame) const;
  void begin_key(const Config& config, Configs& out);
  void step_key(const Config& config, uint8_t byte, Configs& out);
  bool extend_key(Config& config, uint8_t byte);
  bool key_is_live(const Config& config);
  void end_key(const Config& config, Configs& out);
  void add_key(const Config& config, ValueId value, bool named, size_t index, uint32_t needs_met,
               std::string_view key, Configs& out);
  bool may_end_object(const Frame& frame) const;
  bool may_end_array(const Frame& frame) const;
  const SeenLink* remember(const SeenLink* before, std::string_view text);
  const Frame* make_frame(Frame frame);

  JsonGrammar& grammar_;
  RegexPool& pool_;
  std::vector<std::shared_ptr<Arena>> arenas_;
  uint64_t next_serial_ = 1;
};

}  // namespace vitrine::constrain
