// SPDX-License-Identifier: Apache-2.0
#include "json_machine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "char_ranges.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxConfigs = 4096;

bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

bool same_frame(const Frame* x, const Frame* y, size_t words) {
  return x == y ||
         (x && y && x->parent == y->parent && x->is_object == y->is_object &&
          x->shape == y->shape && x->joined == y->joined && x->count == y->count &&
          x->others == y->others && x->required_left == y->required_left && x->needs == y->needs &&
          x->rank == y->rank && x->repeated == y->repeated && x->key == y->key &&
          x->members == y->members && std::equal(x->matched, x->matched + 4, y->matched) &&
          (x->seen == y->seen ||
           (x->seen && y->seen && std::equal(x->seen, x->seen + words, y->seen))));
}

}  // namespace

void* Arena::allocate(size_t bytes) {
  bytes = (bytes + 15) & ~size_t{15};
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].second) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const size_t size = std::max(chunks_.empty() ? kFirstChunk : kChunk, bytes);
    chunks_.emplace_back(std::make_unique<std::byte[]>(size), size);
    used_ = 0;
  }
  void* out = chunks_[chunk_].first.get() + used_;
  used_ += bytes;
  return out;
}

void JsonMachine::return_to(Mark mark) {
  if (arenas_.size() == mark.arena + 1 && !arenas_.back()->is_sealed()) {
    arenas_.back()->reset(mark.mark);
    return;
  }
  arenas_.resize(mark.arena + 1);
  if (arenas_.back()->is_sealed()) {
    arenas_.push_back(std::make_shared<Arena>());
  } else {
    arenas_.back()->reset(mark.mark);
  }
}

JsonMachine JsonMachine::fork() {
  arenas_.back()->seal();
  JsonMachine other(*this);
  arenas_.push_back(std::make_shared<Arena>());
  other.arenas_.push_back(std::make_shared<Arena>());
  return other;
}

const Frame* JsonMachine::make_frame(Frame frame) {
  frame.serial = next_serial_++;
  return arena().make(frame);
}

void JsonMachine::start(Configs& out) {
  Config config;
  config.kind = Config::kValue;
  config.id = grammar_.root();
  out.push_back(config);
}

void JsonMachine::add(Configs& out, const Config& config) {
  const auto words = [&](const Frame* frame) {
    return frame && frame->is_object ? (grammar_.object(frame->shape).named.size() + 63) / 64 : 0;
  };
  if (out.size() >= kMaxConfigs) {
    throw Error(ErrorKind::kUnsupported,
                "more than 4096 readings of one answer at once; make the schema's branches exclude "
                "each other");
  }
  for (const Config& other : out) {
    if (other.kind == config.kind && other.id == config.id && other.state == config.state &&
        other.low == config.low && other.high == config.high && other.depth == config.depth &&
        other.escape == config.escape && other.may_space == config.may_space &&
        (other.text == config.text ||
         (other.text && config.text && other.text->byte == config.text->byte &&
          other.text->before == config.text->before)) &&
        same_frame(other.frame, config.frame, words(config.frame))) {
      return;
    }
  }
  out.push_back(config);
}

void JsonMachine::step(const Configs& configs, uint8_t byte, Configs& out) {
  out.clear();
  for (const Config& config : configs) step(config, byte, out);
  if (out.size() > 1 && (byte == ':' || byte == ',' || byte == '[')) join_values(out);
}

/// Containers whose next value is the same read it once: otherwise readings of what encloses would
/// multiply with each level.
void JsonMachine::join_values(Configs& configs) {
  for (size_t i = 0; i < configs.size(); ++i) {
    const Config first = configs[i];
    if (first.kind != Config::kValue || first.state != 0 || !first.frame ||
        keeps_text(first.frame)) {
      continue;
    }
    std::vector<const Frame*> frames = {first.frame};
    for (size_t j = configs.size(); --j > i;) {
      const Config& other = configs[j];
      if (other.kind != Config::kValue || other.id != first.id || other.state != 0 ||
          !other.frame || other.may_space != first.may_space || keeps_text(other.frame)) {
        continue;
      }
      frames.push_back(other.frame);
      configs.erase(configs.begin() + static_cast<long>(j));
    }
    if (frames.size() == 1) continue;
    auto** joined =
        static_cast<const Frame**>(arena().allocate(frames.size() * sizeof(const Frame*)));
    std::copy(frames.begin(), frames.end(), joined);
    Frame frame;
    frame.joined = joined;
    frame.num_joined = static_cast<uint32_t>(frames.size());
    configs[i].frame = make_frame(frame);
  }
}

bool JsonMachine::is_in_string(const Configs& configs) const {
  return std::ranges::all_of(configs, [this](const Config& config) {
    return config.kind == Config::kKey ||
           (config.kind == Config::kScalar && pool_.node(config.state).kind == NodeKind::kJsonBody);
  });
}

bool JsonMachine::is_complete(const Config& config) const {
  if (config.frame) return false;
  return config.kind == Config::kAfterValue ||
         (config.kind == Config::kScalar && pool_.nullable(config.state));
}

bool JsonMachine::is_complete(const Configs& configs) const {
  return std::any_of(configs.begin(), configs.end(),
                     [this](const Config& config) { return is_complete(config); });
}

bool JsonMachine::take_space(const Config& config, uint8_t byte, Configs& out) {
  if (!is_space(byte)) return false;
  const JsonWhitespace mode = grammar_.whitespace();
  if (mode == JsonWhitespace::kRfc) {
    add(out, config);
  } else if (mode == JsonWhitespace::kOneLine && byte == ' ' && config.may_space) {
    Config next = config;
    next.may_space = false;
    add(out, next);
  }
  return true;
}

void JsonMachine::step(const Config& config, uint8_t byte, Configs& out) {
  switch (config.kind) {
    case Config::kValue:
      if (!take_space(config, byte, out)) begin_value(config, byte, out);
      return;
    case Config::kScalar: {
      const NodeId next = pool_.step(config.state, byte);
      if (next != kEmptyNode) return go_on_scalar(config, next, byte, out);
      if (!pool_.nullable(config.state)) return;
      Configs ended;  // a number ends with what follows it
      end_value(config, ended);
      for (const Config& after : ended) step(after, byte, out);
      return;
    }
    case Config::kFirstKey:
    case Config::kNextKey:
      if (take_space(config, byte, out)) return;
      if (byte == '"') return begin_key(config, out);
      if (byte == '}' && config.kind == Config::kFirstKey && may_end_object(*config.frame)) {
        end_container(*config.frame, out);
      }
      return;
    case Config::kKey: return step_key(config, byte, out);
    case Config::kColon:
      if (take_space(config, byte, out)) return;
      if (byte == ':') {
        Config next;
        next.kind = Config::kValue;
        next.id = config.id;
        next.frame = config.frame;
        next.may_space = true;
        add(out, next);
      }
      return;
    case Config::kFirstItem:
      if (take_space(config, byte, out)) return;
      if (byte == ']') end_container(*config.frame, out);
      return;
    case Config::kAfterValue: break;
  }
  if (take_space(config, byte, out) || !config.frame) return;
  const Frame& frame = *config.frame;
  if (byte == ',') {
    if (frame.is_object) {
      if (!key_follows(frame)) return;
      Config next;
      next.kind = Config::kNextKey;
      next.frame = &frame;
      next.may_space = true;
      add(out, next);
    } else if (item_follows(frame)) {
      begin_items(frame, out);
    }
  } else if (byte == (frame.is_object ? '}' : ']') &&
             (frame.is_object ? may_end_object(frame) : may_end_array(frame))) {
    end_container(frame, out);
  }
}

void JsonMachine::begin_value(const Config& config, uint8_t byte, Configs& out) {
  const Value& value = grammar_.value(config.id);
  if (byte == '{') {
    for (ShapeId shape : value.objects) begin_object(shape, config, out);
  } else if (byte == '[') {
    for (ShapeId shape : value.arrays) begin_array(shape, config, out);
  } else if (config.low == 0) {
    const NodeId start = config.state != 0 ? config.state : value.scalar;
    const NodeId next = pool_.step(start, byte);
    if (next != kEmptyNode) go_on_scalar(config, next, byte, out);
  }
}

void JsonMachine::go_on_scalar(const Config& config, NodeId state, uint8_t byte, Configs& out) {
  Config next;
  next.kind = Config::kScalar;
  next.state = state;
  next.frame = config.frame;
  if (keeps_text(config.frame)) next.text = arena().make(TextLink{config.text, byte});
  if (state == kEpsilonNode) {
    end_value(next, out);
  } else if (!next.text || !is_unique(next.frame) || item_is_live(next)) {
    add(out, next);
  }
}

std::string JsonMachine::text_of(const TextLink* text) const {
  std::string out;
  for (; text; text = text->before) out += static_cast<char>(text->byte);
  std::reverse(out.begin(), out.end());
  return out;
}

const SeenLink* JsonMachine::remember(const SeenLink* before, std::string_view text) {
  char* copy = static_cast<char*>(arena().allocate(text.size() + 1));
  std::memcpy(copy, text.data(), text.size());
  return arena().make(SeenLink{before, copy, text.size()});
}

/// `config.frame`: the container of the value that has ended.
void JsonMachine::end_value(const Config& config, Configs& out, const std::string* container) {
  if (config.frame && config.frame->joined) {
    Config one = config;
    for (uint32_t i = 0; i < config.frame->num_joined; ++i) {
      one.frame = config.frame->joined[i];
      end_value(one, out, container);
    }
    return;
  }
  Config next;
  next.kind = Config::kAfterValue;
  next.frame = config.frame;
  if ((config.text || container) && keeps_text(config.frame) &&
      !keep_value(*config.frame, container ? *container : scalar_text(config.text), next)) {
    return;
  }
  add(out, next);
}

// ---- arrays -------------------------------------------------------------------------------------

void JsonMachine::begin_array(ShapeId id, const Config& config, Configs& out) {
  const ArrayShape& shape = grammar_.array(id);
  Frame frame;
  frame.parent = config.frame;
  frame.inside = keeps_text(config.frame);
  frame.shape = id;
  const Frame* made = make_frame(frame);
  if (may_end_array(*made)) {
    Config empty;
    empty.kind = Config::kFirstItem;
    empty.frame = made;
    add(out, empty);
  }
  if (shape.max > 0) begin_items(*made, out);
}

bool JsonMachine::may_end_array(const Frame& frame) const {
  const ArrayShape& shape = grammar_.array(frame.shape);
  if (frame.count < shape.min || (shape.repeated && !frame.repeated)) return false;
  for (size_t i = 0; i < shape.contains.size(); ++i) {
    if (frame.matched[i] < shape.contains[i].min) return false;
  }
  return true;
}

bool JsonMachine::item_follows(const Frame& frame) const {
  const ArrayShape& shape = grammar_.array(frame.shape);
  return frame.count < shape.max;
}

/// The values that the next item may have; conditions on some item count it or do not.
void JsonMachine::begin_items(const Frame& before, Configs& out) {
  const ArrayShape& shape = grammar_.array(before.shape);
  const uint32_t index = before.count;
  Config next;
  next.kind = Config::kValue;
  next.may_space = index > 0;
  std::vector<std::string> used;
  if (shape.unique) {
    for (const SeenLink* link = before.others; link; link = link->before)
      used.emplace_back(link->text());
  }
  const auto num = static_cast<uint32_t>(shape.contains.size());
  for (uint32_t choice = 0; choice < 1U << num; ++choice) {
    Frame frame = before;
    frame.count = index + 1;
    ValueId value = shape.item(index);
    bool possible = true;
    uint64_t left = 0;
    for (uint32_t i = 0; i < num && possible; ++i) {
      const auto& contains = shape.contains[i];
      const bool match = choice >> i & 1;
      if (index < contains.from) {
        possible = !match;
      } else if (match) {
        // Beyond what is wanted there is nothing to count, unless there is a bound.
        const uint32_t most = contains.max == kUnbounded ? contains.min : contains.max;
        possible = frame.matched[i] < most;
        ++frame.matched[i];
        value = grammar_.conjunction(value, contains.match);
      } else if (contains.max != kUnbounded) {
        value = grammar_.conjunction(value, contains.mismatch);
      }
      if (frame.matched[i] < contains.min) left += contains.min - frame.matched[i];
    }
    const uint64_t room = shape.max == kUnbounded ? ~uint64_t{0} : shape.max - frame.count;
    if (!possible || left > room || !grammar_.is_live(value)) continue;
    if (shape.unique) {
      next.state = grammar_.unused_scalar(value, used);
      next.low = next.state == kEmptyNode ? 1 : 0;
      const Value& item = grammar_.value(value);
      if (next.low == 1 && item.objects.empty() && item.arrays.empty()) continue;
    }
    next.id = value;
    next.frame = make_frame(frame);
    add(out, next);
  }
}

}  // namespace vitrine::constrain
