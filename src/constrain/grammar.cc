// SPDX-License-Identifier: Apache-2.0
// Grammars and the constraints that they start.
#include <algorithm>

#include "char_ranges.h"
#include "constraint_base.h"
#include "core/utf8.h"
#include "lenient.h"
#include "regex_parse.h"

namespace vitrine {

using constrain::ByteSet;
using constrain::Config;
using constrain::Configs;
using constrain::ConstraintBase;
using constrain::JsonGrammar;
using constrain::JsonMachine;
using constrain::kEmptyNode;
using constrain::kMaxExpression;
using constrain::kMaxForced;
using constrain::kMaxReadings;
using constrain::NodeId;
using constrain::RegexPool;

namespace {

class JsonConstraint : public ConstraintBase<JsonConstraint> {
 public:
  explicit JsonConstraint(std::shared_ptr<Grammar::Impl> grammar)
      : ConstraintBase(std::move(grammar)),
        machine_(*grammar_->json),
        mask_(machine_, constrain::impl_of(grammar_->table), *grammar_->terminals),
        finish_(machine_, *grammar_->finish),
        limit_(machine_, constrain::impl_of(grammar_->table), *grammar_->terminals, finish_,
               *grammar_->finish) {
    machine_.start(current_);
  }
  JsonConstraint(const JsonConstraint& other, JsonMachine machine)
      : ConstraintBase(other),
        machine_(std::move(machine)),
        mask_(machine_, constrain::impl_of(grammar_->table), *grammar_->terminals),
        finish_(machine_, *grammar_->finish),
        limit_(machine_, constrain::impl_of(grammar_->table), *grammar_->terminals, finish_,
               *grammar_->finish),
        current_(other.current_),
        past_(other.past_),
        steps_(other.steps_) {}

  void fill(std::span<uint32_t> mask) { mask_.add(current_, mask); }
  constrain::Finish finish() { return finish_.of(current_); }
  uint32_t least_tokens() {
    JsonGrammar& grammar = *grammar_->json;
    constrain::LeastSize sizes(grammar.pool(), &grammar);
    return tokens_of_size(sizes.of_value(grammar.root()),
                          [&] { return sizes.bytes_of_value(grammar.root()); });
  }
  void limit(std::span<uint32_t> mask, uint32_t left) { limit_.keep(current_, mask, left); }
  bool complete() const { return machine_.is_complete(current_); }
  void describe(std::string_view text, ConstraintState& out) const {
    out.readings = machine_.readings(current_, text, kMaxReadings);
    out.num_readings = static_cast<int64_t>(current_.size());
  }
  ByteSet next_bytes() { return machine_.taken_bytes(current_); }
  size_t length() const { return steps_.size(); }
  void repeat_state() { push(); }

  JsonMachine::Mark place() const { return machine_.mark(); }
  void return_to(JsonMachine::Mark mark) { machine_.return_to(mark); }

  bool advance(const std::string& bytes) {
    const JsonMachine::Mark mark = machine_.mark();
    Configs at = current_;
    for (char byte : bytes) {
      machine_.step(at, static_cast<uint8_t>(byte), next_);
      std::swap(at, next_);
      if (at.empty()) {
        machine_.return_to(mark);
        return false;
      }
    }
    push(mark);
    std::swap(current_, at);
    return true;
  }

  void drop(size_t count) {
    const Step step = steps_[steps_.size() - count];
    current_.assign(past_.begin() + static_cast<long>(step.begin),
                    past_.begin() + static_cast<long>(step.end));
    past_.resize(step.begin);
    steps_.resize(steps_.size() - count);
    machine_.return_to(step.mark);
  }

  std::string forced_bytes() override {
    return shared([this] { return forced(false); });
  }
  std::string forced_text() override {
    return shared([this] { return forced(true); });
  }

  std::unique_ptr<Constraint> fork() const override {
    return std::make_unique<JsonConstraint>(*this, machine_.fork());
  }

 private:
  /// The state before an accepted token.
  struct Step {
    size_t begin = 0, end = 0;  // in past_
    JsonMachine::Mark mark;
  };
  std::string forced(bool is_plain) {
    std::string out;
    if (ended_) return out;
    const JsonMachine::Mark mark = machine_.mark();
    Configs at = current_, found, next;
    while (out.size() < kMaxForced && !machine_.is_complete(at)) {
      ByteSet bytes;
      if (!is_plain) bytes = machine_.next_bytes(at);
      if (is_plain && !machine_.plain_bytes(at, bytes)) break;
      const int only = constrain::only_byte(bytes, [&](uint8_t byte) {
        machine_.step(at, byte, next);
        if (next.empty()) return false;
        std::swap(found, next);
        return true;
      });
      if (only < 0) break;
      out += static_cast<char>(only);
      std::swap(at, found);
    }
    machine_.return_to(mark);
    return out;
  }
  void push() { push(machine_.mark()); }
  void push(JsonMachine::Mark mark) {
    const size_t begin = past_.size();
    past_.insert(past_.end(), current_.begin(), current_.end());
    steps_.push_back({begin, past_.size(), mark});
  }

  mutable JsonMachine machine_;
  constrain::JsonMask mask_;
  constrain::JsonFinish finish_;
  constrain::JsonLimit limit_;
  Configs current_, next_, past_;
  std::vector<Step> steps_;
};

class RegexConstraint : public ConstraintBase<RegexConstraint> {
 public:
  explicit RegexConstraint(std::shared_ptr<Grammar::Impl> grammar)
      : ConstraintBase(std::move(grammar)), state_(grammar_->regex) {}

  void fill(std::span<uint32_t> mask) {
    const auto& words = grammar_->terminals->at(state_).words;
    std::copy(words.begin(), words.end(), mask.begin());
  }
  bool complete() const { return grammar_->states().nullable(state_); }
  void describe(std::string_view, ConstraintState& out) const {
    if (state_ == constrain::kEpsilonNode) return;  // nothing is left
    out.readings = {"`" + constrain::regex_text(grammar_->states(), state_, kMaxExpression) + "`"};
    out.num_readings = 1;
  }
  ByteSet next_bytes() const { return grammar_->states().row_bytes(state_); }
  constrain::Finish finish() { return grammar_->finish->of_state(state_); }
  uint32_t least_tokens() {
    constrain::LeastSize sizes(grammar_->states());
    return tokens_of_size(sizes.of_state(state_), [&] { return sizes.bytes_of_state(state_); });
  }
  void limit(std::span<uint32_t> mask, uint32_t left) {
    constrain::keep_fitting(constrain::impl_of(grammar_->table), *grammar_->terminals,
                            *grammar_->finish, grammar_->states(), state_, mask, left);
  }
  size_t length() const { return past_.size(); }
  void repeat_state() { past_.push_back(state_); }
  bool advance(const std::string& bytes) {
    const NodeId next = grammar_->states().step(state_, bytes);
    if (next == kEmptyNode) return false;
    past_.push_back(state_);
    state_ = next;
    return true;
  }
  void drop(size_t count) {
    state_ = past_[past_.size() - count];
    past_.resize(past_.size() - count);
  }
  static int place() { return 0; }  // it has no memory of its own that grows
  static void return_to(int) {}
  std::string forced_bytes() override {
    return shared([this] { return forced(); });
  }
  std::unique_ptr<Constraint> fork() const override {
    return std::make_unique<RegexConstraint>(*this);
  }

 private:
  std::string forced() {
    std::string out;
    RegexPool& states = grammar_->states();
    for (NodeId at = state_; !ended_ && !states.nullable(at) && out.size() < kMaxForced;) {
      const uint32_t* row = states.row(at);
      const auto* first = std::find_if(row, row + 256, [](NodeId id) { return id != kEmptyNode; });
      if (first == row + 256 ||
          std::any_of(first + 1, row + 256, [](NodeId id) { return id != kEmptyNode; })) {
        break;
      }
      out += static_cast<char>(first - row);
      at = *first;
    }
    return out;
  }

  NodeId state_;
  std::vector<NodeId> past_;
};

class RulesConstraint : public ConstraintBase<RulesConstraint> {
 public:
  explicit RulesConstraint(std::shared_ptr<Grammar::Impl> grammar)
      : ConstraintBase(std::move(grammar)),
        parser_(*grammar_->rules, *grammar_->pool, *grammar_->finish, *grammar_->terminals) {}

  void fill(std::span<uint32_t> mask) {
    parser_.begin_work();
    parser_.fill(mask);
  }
  bool complete() const { return parser_.is_complete(); }
  void describe(std::string_view text, ConstraintState& out) const {
    size_t count = 0;
    out.readings = parser_.readings(text, kMaxReadings, count);
    out.num_readings = static_cast<int64_t>(count);
  }
  ByteSet next_bytes() { return parser_.taken_bytes(); }
  size_t length() const { return past_.size(); }
  void repeat_state() { past_.push_back(parser_.length()); }

  bool advance(const std::string& bytes) {
    parser_.begin_work();
    const size_t before = parser_.length();
    for (const char byte : bytes) {
      if (parser_.step(static_cast<uint8_t>(byte))) continue;
      parser_.drop_to(before);
      return false;
    }
    past_.push_back(before);
    return true;
  }
  void drop(size_t count) {
    parser_.drop_to(past_[past_.size() - count]);
    past_.resize(past_.size() - count);
  }
  constrain::Finish finish() {
    parser_.begin_work();
    std::string text;
    if (parser_.finish(&text) == constrain::kNoBound) return {};
    return grammar_->finish->spelled(std::move(text));
  }
  uint32_t least_tokens() { return parser_.least_tokens(); }
  void limit(std::span<uint32_t> mask, uint32_t left) {
    parser_.begin_work();
    parser_.limit(mask, left);
  }
  constrain::EarleyParser::Place place() const { return parser_.place(); }
  void return_to(const constrain::EarleyParser::Place& place) { parser_.return_to(place); }
  std::string forced_bytes() override {
    return shared([this] { return forced(false); });
  }
  std::string forced_text() override {
    return shared([this] { return forced(true); });
  }
  std::unique_ptr<Constraint> fork() const override {
    return std::make_unique<RulesConstraint>(*this);
  }

 private:
  std::string forced(bool is_plain) {
    parser_.begin_work();
    std::string out;
    const size_t start = parser_.length();
    while (!ended_ && out.size() < kMaxForced && !parser_.is_complete()) {
      ByteSet bytes;
      if (!parser_.next_bytes(is_plain, bytes)) break;
      const size_t here = parser_.length();
      const int only = constrain::only_byte(bytes, [&](uint8_t byte) {
        if (!parser_.step(byte)) return false;
        parser_.drop_to(here);
        return true;
      });
      if (only < 0 || !parser_.step(static_cast<uint8_t>(only))) break;
      out += static_cast<char>(only);
    }
    parser_.drop_to(start);
    return out;
  }

  constrain::EarleyParser parser_;
  std::vector<size_t> past_;
};

}  // namespace

Grammar::Grammar(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->terminals =
      std::make_unique<constrain::TerminalMasks>(impl_->states(), constrain::impl_of(impl_->table));
  impl_->finish = std::make_unique<constrain::FinishTexts>(impl_->states(), impl_->json.get(),
                                                           constrain::impl_of(impl_->table));
}

Grammar Grammar::json_schema(const TokenTable& table, std::string_view schema,
                             const SchemaOptions& options) {
  auto impl = std::make_shared<Impl>(table);
  impl->json = constrain::make_json_grammar(schema, options, "", impl->weakened);
  return Grammar(std::move(impl));
}

Grammar Grammar::json(const TokenTable& table, const SchemaOptions& options) {
  auto impl = std::make_shared<Impl>(table);
  impl->json = std::make_unique<JsonGrammar>(options);
  return Grammar(std::move(impl));
}

Grammar Grammar::regex(const TokenTable& table, std::string_view pattern,
                       const GrammarOptions& options) {
  auto impl = std::make_shared<Impl>(table);
  impl->pool = std::make_unique<RegexPool>(options.max_states);
  try {
    impl->regex = constrain::compile_pattern(*impl->pool, pattern, constrain::PatternScope::kWhole);
  } catch (const constrain::PatternError& error) {
    throw Error(ErrorKind::kInvalidArgument, "the regular expression has " + error.message);
  }
  if (!impl->pool->is_live(impl->regex)) {
    throw Error(ErrorKind::kInvalidArgument, "the regular expression matches no text at all");
  }
  return Grammar(std::move(impl));
}

Grammar Grammar::choices(const TokenTable& table, std::vector<std::string> texts,
                         const GrammarOptions& options) {
  if (texts.empty()) throw Error(ErrorKind::kInvalidArgument, "a list of choices that is empty");
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!is_utf8(texts[i])) {
      throw Error(ErrorKind::kInvalidArgument, "choice " + std::to_string(i) + " is not UTF-8");
    }
  }
  auto impl = std::make_shared<Impl>(table);
  impl->pool = std::make_unique<RegexPool>(options.max_states);
  impl->regex = impl->pool->literals(std::move(texts));
  return Grammar(std::move(impl));
}

Grammar Grammar::of_rules(const TokenTable& table, Rules rules) {
  auto impl = std::make_shared<Impl>(table);
  impl->weakened = std::move(rules.grammar.weakened);
  impl->rules = std::make_unique<constrain::ContextFree>(
      constrain::lower(std::move(rules.grammar), *rules.pool, rules.max_items));
  impl->pool = std::move(rules.pool);
  Grammar grammar(std::move(impl));
  constrain::complete(*grammar.impl_->rules, *grammar.impl_->finish, *grammar.impl_->pool);
  return grammar;
}

Grammar Grammar::gbnf(const TokenTable& table, std::string_view text,
                      const GrammarOptions& options) {
  Rules rules(options);
  rules.grammar = constrain::parse_gbnf(text, *rules.pool);
  return of_rules(table, std::move(rules));
}

Grammar Grammar::lark(const TokenTable& table, std::string_view text,
                      const GrammarOptions& options) {
  Rules rules(options);
  rules.grammar = constrain::parse_lark(text, *rules.pool, options.schema);
  return of_rules(table, std::move(rules));
}

std::unique_ptr<Constraint> Grammar::start() const {
  const auto make = [this]() -> std::unique_ptr<Constraint> {
    if (impl_->rules) return std::make_unique<RulesConstraint>(impl_);
    if (impl_->json) return std::make_unique<JsonConstraint>(impl_);
    return std::make_unique<RegexConstraint>(impl_);
  };
  return impl_->lock.run(make, [] {});
}

const std::vector<Weakening>& Grammar::weakened() const { return impl_->weakened; }

Grammar::Statistics Grammar::statistics() const {
  return impl_->lock.read([this] {
    Statistics out;
    out.states = impl_->states().num_nodes();
    out.rows = impl_->states().num_rows();
    if (impl_->json) {
      out.values = impl_->json->num_values();
      out.shapes = impl_->json->num_shapes();
    }
    return out;
  });
}

}  // namespace vitrine
