// SPDX-License-Identifier: Apache-2.0
// How JSON text can be finished from any place in it.
#include <algorithm>
#include <bit>
#include <span>

#include "finish.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxJsonFinishText = size_t{1} << 16;
constexpr size_t kMaxJsonFinishMemo = size_t{1} << 14;
constexpr uint32_t kMaxKeys = 4;     // keys tried where one is begun
constexpr uint32_t kMaxItems = 100;  // numbers that must differ, which are followed one by one

}  // namespace

Finish JsonFinish::of(const Configs& configs) {
  Finish best;
  if (machine_.is_complete(configs)) return {"", 0};
  texts_.trim();
  num_others_ = 0;  // of a question that did not end
  const JsonMachine::Mark mark = machine_.mark();
  for (const Config& config : configs) {
    std::string text;
    if (visit(config, &text) == kNoBound) continue;
    Finish one = texts_.spelled(std::move(text));
    if (one.tokens < best.tokens) best = std::move(one);
  }
  machine_.return_to(mark);
  // A text is only believed when the machine has read it.
  if (!best.is_known()) return best;
  Configs at = configs, next;
  for (const char byte : best.text) {
    machine_.step(at, static_cast<uint8_t>(byte), next);
    std::swap(at, next);
  }
  if (!machine_.is_complete(at)) best = {};
  machine_.return_to(mark);
  return best;
}

uint32_t JsonFinish::bound(const Configs& configs) {
  if (machine_.is_complete(configs)) return 0;
  texts_.trim();
  num_others_ = 0;  // of a question that did not end
  const JsonMachine::Mark mark = machine_.mark();
  uint32_t best = kNoBound;
  for (const Config& config : configs) best = std::min(best, visit(config, nullptr));
  machine_.return_to(mark);
  return best;
}

const Finish& JsonFinish::text_of_value(ValueId id) {
  FinishTexts::Checked& found = texts_.of_value(id);
  if (found.is_checked) return found;
  must_write();
  found.is_checked = true;  // from here on: a value within itself finds none
  Config config;
  config.kind = Config::kValue;
  config.id = id;
  if (!found.is_known()) {  // conditions that only the machine can follow
    for (const char* bracket : {"{", "["}) {
      Configs inside;
      machine_.step(config, static_cast<uint8_t>(*bracket), inside);
      for (const Config& one : inside) {
        std::string text = bracket;
        if (visit(one, &text) == kNoBound) continue;
        Finish made = texts_.spelled(std::move(text));
        if (made.tokens < found.tokens) static_cast<Finish&>(found) = std::move(made);
      }
    }
  }
  Configs at = {config}, next;
  for (const char byte : found.text) {
    machine_.step(at, static_cast<uint8_t>(byte), next);
    std::swap(at, next);
  }
  if (!machine_.is_complete(at)) static_cast<Finish&>(found) = {};
  return found;
}

uint32_t JsonFinish::visit(const Config& config, std::string* text) {
  pending_size_ = 0;
  const auto with = [&](const Finish& finish, const char* before = "") {
    if (!finish.is_known()) return kNoBound;
    uint32_t tokens = finish.tokens;
    if (*before != '\0') tokens = texts_.spelled(before + finish.text).tokens;
    if (text != nullptr) *text += before + finish.text;
    return add_bounds(tokens, rest(config.frame, Place::kAfterValue, text));
  };
  switch (config.kind) {
    case Config::kAfterValue: return rest(config.frame, Place::kAfterValue, text);
    case Config::kFirstKey: return rest(config.frame, Place::kFirst, text);
    case Config::kNextKey: return rest(config.frame, Place::kNext, text);
    case Config::kKey: return visit_key(config, text);
    case Config::kColon: return with(text_of_value(config.id), ":");
    case Config::kFirstItem: return through(config, "]", text);
    case Config::kValue:
      if (config.low != 0) return with(other_container(*config.frame, config.id));
      if (config.state == 0) return with(text_of_value(config.id));
      return through(config, texts_.of_state(config.state).text, text);
    case Config::kScalar:
      if (!machine_.keeps_text(config.frame)) return with(texts_.of_state(config.state));
      return through(config, texts_.of_state(config.state).text, text);
  }
  return kNoBound;
}

uint32_t JsonFinish::through(const Config& config, const std::string& read, std::string* text) {
  Configs at = {config}, next;
  for (const char byte : read) {
    machine_.step(at, static_cast<uint8_t>(byte), next);
    std::swap(at, next);
  }
  const uint32_t tokens = texts_.spelled(read).tokens;
  uint32_t best = kNoBound;
  std::string best_text;
  for (const Config& one : at) {
    std::string more;
    uint32_t left = kNoBound;
    if (one.kind == Config::kAfterValue || one.kind == Config::kColon) {
      left = visit(one, text != nullptr ? &more : nullptr);
    } else if (one.kind == Config::kScalar && machine_.grammar().pool().nullable(one.state)) {
      // A number ends with what follows it, and only then it shows whether it is new.
      if (one.frame != nullptr && !one.frame->is_object && machine_.keeps_text(one.frame)) {
        const uint32_t min = machine_.grammar().array(one.frame->shape).min;
        if (one.frame->count < min) {
          if (min - one.frame->count > kMaxItems) continue;
          Configs following;
          machine_.step(one, ',', following);
          for (const Config& item : following) {
            std::string rest_text = ",";
            const uint32_t after = add_bounds(texts_.spelled(",").tokens,
                                              visit(item, text != nullptr ? &rest_text : nullptr));
            if (after >= best) continue;
            best = after;
            best_text = std::move(rest_text);
          }
          continue;
        }
      }
      Configs ended;
      machine_.step({one}, ' ', ended);
      if (ended.empty() && one.frame != nullptr) machine_.step({one}, ',', ended);
      if (ended.empty() && one.frame != nullptr) machine_.step({one}, ']', ended);
      if (ended.empty() && one.frame != nullptr) continue;
      left = rest(one.frame, Place::kAfterValue, text != nullptr ? &more : nullptr);
    }
    if (left >= best) continue;
    best = left;
    best_text = std::move(more);
  }
  if (text != nullptr) *text += read + best_text;
  return add_bounds(tokens, best);
}

/// What tells how a key goes on that is none of those that the object has or names, whatever its
/// text: empty where the text itself matters.
std::vector<uint64_t> JsonFinish::kind_of_key(const Config& config) {
  JsonGrammar& grammar = machine_.grammar();
  const Frame& frame = *config.frame;
  const ObjectShape& shape = grammar.object(frame.shape);
  if (config.escape != 0 || config.low < config.high || config.state == kEmptyNode ||
      frame.needs != 0 || frame.inside) {
    return {};
  }
  const std::string key = machine_.text_of(config.text);
  bool is_other = true;
  for_known_keys(frame,
                 [&](std::string_view known) { is_other = is_other && !known.starts_with(key); });
  if (!is_other) return {};
  std::vector<uint64_t> kind = {frame.serial, config.state};
  for (const ObjectShape::Rule& rule : shape.rules) {
    kind.push_back(grammar.pool().step(rule.keys, key));
  }
  return kind;
}

uint32_t JsonFinish::visit_key(const Config& config, std::string* text) {
  std::vector<uint64_t> kind;
  if (text == nullptr) kind = kind_of_key(config);
  if (kind.empty()) return look_at_key(config, text);
  if (const auto found = keys_.find(kind); found != keys_.end()) return found->second;
  const uint32_t bound = look_at_key(config, text);
  if (keys_.size() >= kMaxJsonFinishMemo) keys_.clear();
  return keys_.emplace(std::move(kind), bound).first->second;
}

uint32_t JsonFinish::look_at_key(const Config& config, std::string* text) {
  if (config.escape != 0) {  // only a key that is not named is followed
    if (config.state == kEmptyNode) return kNoBound;
    const Finish& key = texts_.of_state(
        machine_.grammar().pool().json_body(config.state, EscapeState::unpack(config.escape)));
    return key.is_known() ? through(config, key.text, text) : kNoBound;
  }
  const ObjectShape& shape = machine_.grammar().object(config.frame->shape);
  uint32_t best = kNoBound;
  std::string best_text;
  const auto offer = [&](const std::string& read) {
    std::string more;
    const uint32_t one = through(config, read, text != nullptr ? &more : nullptr);
    if (one >= best) return;
    best = one;
    best_text = std::move(more);
  };
  uint32_t tried = 0;
  for (const bool required : {true, false}) {
    for (uint32_t i = config.low; i < config.high && tried < kMaxKeys; ++i) {
      if (shape.named[i].required != required || !machine_.named_allowed(*config.frame, i))
        continue;
      ++tried;
      offer(escaped(std::string_view(*shape.named[i].name).substr(config.depth)) + "\"");
    }
  }
  if (config.state != kEmptyNode) {
    RegexPool& pool = machine_.grammar().pool();
    const Finish& key = texts_.of_state(pool.json_body(config.state));
    if (key.is_known()) offer(key.text);
    // The shortest may be taken already.
    for (char letter = 'a'; letter <= 'z' && best == kNoBound; ++letter) {
      const NodeId next = pool.step(config.state, static_cast<uint8_t>(letter));
      if (next == kEmptyNode) continue;
      const Finish& longer = texts_.of_state(pool.json_body(next));
      if (longer.is_known()) offer(letter + longer.text);
    }
  }
  if (text != nullptr) *text += best_text;
  return best;
}

uint32_t JsonFinish::rest(const Frame* frame, Place place, std::string* text) {
  uint32_t sum = 0;
  for (; frame != nullptr; frame = frame->parent, place = Place::kAfterValue) {
    if (frame->joined != nullptr) {
      uint32_t best = kNoBound;
      std::string best_text;
      for (uint32_t i = 0; i < frame->num_joined; ++i) {
        std::string more;
        const uint32_t one = rest(frame->joined[i], place, text != nullptr ? &more : nullptr);
        if (one >= best) continue;
        best = one;
        best_text = std::move(more);
      }
      if (text != nullptr) *text += best_text;
      return add_bounds(sum, best);
    }
    const Rest& own = rest_of(*frame, place);
    pending_size_ = machine_.is_unique(frame->parent) ? own.size + 1 : 0;
    sum = add_bounds(sum, own.tokens);
    if (sum == kNoBound) return kNoBound;
    if (text != nullptr) *text += own.text;
  }
  return sum;
}

const JsonFinish::Rest& JsonFinish::rest_of(const Frame& frame, Place place) {
  const uint64_t key = frame.serial * 4 + static_cast<uint64_t>(place);
  const bool is_kept = pending_size_ == 0;  // else it depends on what is within
  if (const auto found = frames_.find(key); is_kept && found != frames_.end()) {
    return found->second;
  }
  Rest made;
  if (std::optional<std::string> own = own_rest(frame, place)) {
    static_cast<Finish&>(made) = texts_.spelled(std::move(*own));
    made.size = made_size_;
  }
  if (!is_kept) return passing_rest_ = std::move(made);
  if (frames_.size() >= kMaxJsonFinishMemo) frames_.clear();
  return frames_.emplace(key, std::move(made)).first->second;
}

std::optional<std::string> JsonFinish::own_rest(const Frame& frame, Place place) {
  std::optional<std::string> text = frame.is_object ? object_rest(frame, place) : array_rest(frame);
  // Keys without further conditions are right as they are made; reading them would build an
  // automaton without the used keys for each object that is looked at.
  const bool is_plain = frame.is_object && machine_.grammar().object(frame.shape).needs.empty();
  if (text && !is_plain && !leads_out(frame, place, *text)) text.reset();
  return text;
}

std::optional<std::string> JsonFinish::object_rest(const Frame& frame, Place place) {
  JsonGrammar& grammar = machine_.grammar();
  const ObjectShape& shape = grammar.object(frame.shape);
  std::string text;
  uint32_t count = frame.count, least = std::max(shape.min, least_size(frame));
  bool wants_comma = place == Place::kAfterValue;
  const auto add = [&](std::string_view name, const Finish& value) {
    text += (wants_comma ? ",\"" : "\"") + escaped(name) + "\":" + value.text;
    wants_comma = true;
    ++count;
    return value.is_known() && text.size() <= kMaxJsonFinishText;
  };
  const auto is_free = [&](size_t i) {
    if ((frame.seen[i / 64] >> (i % 64) & 1) != 0) return false;
    if (!shape.order) return machine_.named_allowed(frame, i);
    return (shape.allowed[i / 64] >> (i % 64) & 1) != 0 && shape.order->ranks[i] >= frame.rank;
  };
  const auto add_named = [&](bool required, uint32_t most) {
    for (size_t i = 0; i < shape.named.size() && most > 0; ++i) {
      if (shape.named[i].required != required || !is_free(i)) continue;
      if (!add(*shape.named[i].name, text_of_value(shape.named[i].value))) return false;
      --most;
    }
    return true;
  };
  std::vector<std::string> used;
  for (const SeenLink* link = frame.others; link != nullptr; link = link->before) {
    used.emplace_back(link->text());
  }
  RegexPool& pool = grammar.pool();
  const auto add_others = [&](NodeId keys, ValueId also, uint32_t wanted) {
    if (wanted > kMaxJsonFinishText) return false;
    // A search for texts, since an automaton without the used ones would be one for each object.
    const std::vector<std::string> found = texts_.unused_texts(keys, used, wanted);
    used.insert(used.end(), found.begin(), found.end());
    return found.size() == wanted && std::ranges::all_of(found, [&](const std::string& key) {
             const ValueId value = grammar.conjunction(grammar.rest_value(shape, key), also);
             return grammar.is_live(value) && add(key, text_of_value(value));
           });
  };
  if (shape.order) {
    // Those that need not come stand between those that must: as many as are wanted, the first.
    uint32_t wanted = std::max(least, place == Place::kNext ? frame.count + 1 : 0);
    wanted -= std::min(wanted, frame.count + frame.required_left +
                                   static_cast<uint32_t>(std::popcount(frame.needs)));
    for (const uint32_t i : shape.order->sequence) {
      const ObjectShape::Named& named = shape.named[i];
      if (!is_free(i) || (!named.required && wanted == 0)) continue;
      if (!named.required) --wanted;
      if (!add(*named.name, text_of_value(named.value))) return {};
    }
  } else if (!add_named(true, kUnbounded)) {
    return {};
  }
  for (size_t i = 0; i < shape.needs.size(); ++i) {
    if ((frame.needs >> i & 1) == 0) continue;
    if (!add_others(pool.all_of(shape.rest_keys, shape.needs[i].keys), shape.needs[i].value, 1))
      return {};
  }
  if (place == Place::kNext) least = std::max(least, frame.count + 1);  // a key must follow
  if (count < least && !shape.order && !add_named(false, least - count)) return {};
  if (count < least) {
    if (shape.rest_keys == kEmptyNode || !add_others(shape.rest_keys, kAnyValue, least - count))
      return {};
  }
  if (count > shape.max) return {};
  made_size_ = count;
  return text + "}";
}

std::optional<std::string> JsonFinish::array_rest(const Frame& frame) {
  JsonGrammar& grammar = machine_.grammar();
  const ArrayShape& shape = grammar.array(frame.shape);
  std::string text;
  std::vector<uint32_t> matched(frame.matched, frame.matched + 4);
  std::vector<std::string> used;  // as they are spelled
  for (const SeenLink* link = frame.others; link != nullptr; link = link->before) {
    used.emplace_back(link->text());
    if (used.back()[0] == '"') used.back() = '"' + escaped(used.back().substr(1)) + '"';
  }
  uint32_t least = std::max(shape.min, least_size(frame));
  num_others_ = 0;
  if (shape.repeated && !frame.repeated) {  // two that are alike
    least = std::max(least, std::max(frame.count, static_cast<uint32_t>(shape.prefix.size())) + 2);
  }
  for (uint32_t index = frame.count;; ++index) {
    ValueId item = shape.item(index);
    bool is_wanted = index < least;
    for (size_t i = 0; i < shape.contains.size(); ++i) {
      const ArrayShape::Contains& contains = shape.contains[i];
      if (matched[i] >= contains.min) {
        if (contains.max != kUnbounded) item = grammar.conjunction(item, contains.mismatch);
        continue;
      }
      is_wanted = true;
      if (index < contains.from) continue;
      item = grammar.conjunction(item, contains.match);
      ++matched[i];
    }
    if (!is_wanted) {
      made_size_ = index;
      return text + "]";
    }
    if (text.size() > kMaxJsonFinishText || !grammar.is_live(item)) return {};
    Finish unused;
    if (shape.unique) {
      if (auto found = texts_.unused_texts(grammar.value(item).scalar, used, 1); !found.empty()) {
        used.push_back(found[0]);
        unused = texts_.spelled(std::move(found[0]));
      } else {
        unused = other_container(frame, item);
        ++num_others_;
      }
    }
    const Finish& value = shape.unique ? unused : text_of_value(item);
    if (!value.is_known()) return {};
    text += (index > 0 ? "," : "") + value.text;
  }
}

uint32_t JsonFinish::least_size(const Frame& frame) const {
  if (!frame.inside || !machine_.is_unique(frame.parent)) return 0;
  size_t most = pending_size_;
  for (const SeenLink* link = frame.parent->others; link != nullptr; link = link->before) {
    if (link->text()[0] != '{' && link->text()[0] != '[') continue;
    most = std::max(most, parse_json(link->text()).items.size() + 1);
  }
  return static_cast<uint32_t>(most) + num_others_;
}

Finish JsonFinish::other_container(const Frame& array, ValueId item) {
  Config config;
  config.kind = Config::kValue;
  config.id = item;
  config.frame = &array;
  Finish best;
  const uint32_t num_others = num_others_;
  for (const char* bracket : {"{", "["}) {
    Configs inside;
    machine_.step(config, static_cast<uint8_t>(*bracket), inside);
    for (const Config& one : inside) {
      if (one.kind != Config::kFirstKey && one.kind != Config::kValue) continue;
      const bool is_object = one.kind == Config::kFirstKey;
      Frame fresh = *one.frame;
      if (!is_object) --fresh.count;  // its first item has begun
      num_others_ = num_others;
      std::optional<std::string> text =
          is_object ? object_rest(fresh, Place::kFirst) : array_rest(fresh);
      if (!text) continue;
      Finish made = texts_.spelled(bracket + *text);
      if (made.tokens < best.tokens) best = std::move(made);
    }
  }
  num_others_ = num_others;
  if (best.is_known()) {
    pending_size_ =
        std::max(pending_size_, static_cast<uint32_t>(parse_json(best.text).items.size()) + 1);
  }
  return best;
}

/// True where the machine reads `text` from within the frame and stands behind it then.
bool JsonFinish::leads_out(const Frame& frame, Place place, const std::string& text) {
  Config config;
  config.kind = place == Place::kFirst  ? Config::kFirstKey
                : place == Place::kNext ? Config::kNextKey
                                        : Config::kAfterValue;
  config.frame = &frame;
  Configs at = {config}, next;
  for (const char byte : text) {
    machine_.step(at, static_cast<uint8_t>(byte), next);
    std::swap(at, next);
  }
  const auto is_joined = [&frame](const Frame* after) {  // the places behind it part again there
    if (frame.parent == nullptr) return false;
    const std::span joined(frame.parent->joined, frame.parent->num_joined);
    return std::ranges::find(joined, after) != joined.end();
  };
  return std::any_of(at.begin(), at.end(), [&](const Config& after) {
    return after.kind == Config::kAfterValue &&
           (after.frame == frame.parent || is_joined(after.frame) ||
            // A unique array's frame changes with each item.
            (after.frame != nullptr && frame.parent != nullptr &&
             after.frame->is_object == frame.parent->is_object &&
             after.frame->shape == frame.parent->shape &&
             after.frame->parent == frame.parent->parent &&
             after.frame->count == frame.parent->count));
  });
}

}  // namespace vitrine::constrain
