// Grammars and the constraints that they start.
#include <algorithm>
#include <mutex>

#include "char_ranges.h"
#include "json_mask.h"
#include "regex_parse.h"
#include "token_limit.h"

namespace vitrine {

using constrain::Config;
using constrain::Configs;
using constrain::JsonGrammar;
using constrain::JsonMachine;
using constrain::kEmptyNode;
using constrain::NodeId;
using constrain::RegexPool;

struct Grammar::Impl {
  explicit Impl(TokenTable token_table) : table(std::move(token_table)) {}

  TokenTable table;
  std::mutex mutex;  // guards all below, which grow while constraints are used
  std::unique_ptr<JsonGrammar> json;
  std::unique_ptr<RegexPool> pool;  // where there is no `json`
  NodeId regex = kEmptyNode;
  std::unique_ptr<constrain::TerminalMasks> terminals;
  std::unique_ptr<constrain::FinishTexts> finish;

  RegexPool& states() { return json ? json->pool() : *pool; }
};

namespace {

constexpr size_t kMaxForced = 1024;

/// What the two kinds of constraint share: ids in and out, history, end of sequence.
template <typename Derived>
class ConstraintBase : public Constraint {
 public:
  explicit ConstraintBase(std::shared_ptr<Grammar::Impl> grammar) : grammar_(std::move(grammar)) {}

  int32_t vocab_size() const override { return grammar_->table.vocab_size(); }

  bool allowed_tokens(std::span<uint32_t> mask) override {
    check_mask(mask);
    const std::lock_guard lock(grammar_->mutex);
    std::fill(mask.begin(), mask.end(), 0);
    if (ended_) return false;
    self().fill(mask);
    if (self().complete()) {
      for (int32_t id : grammar_->table.end_ids()) {
        mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
      }
    }
    return has_any(mask);
  }

  bool accept(int32_t token) override {
    if (token < 0 || token >= vocab_size() || ended_) return false;
    const std::lock_guard lock(grammar_->mutex);
    const std::string& bytes = grammar_->table.bytes(token);
    if (bytes.empty()) {
      const auto ends = grammar_->table.end_ids();
      if (std::find(ends.begin(), ends.end(), token) == ends.end() || !self().complete()) {
        return false;
      }
      self().repeat_state();
      ended_ = true;
      has_plan_ = false;
      return true;
    }
    if (!self().advance(bytes)) return false;
    has_plan_ = has_plan_ && plan_.text.starts_with(bytes);
    if (has_plan_) plan_ = grammar_->finish->spelled(plan_.text.substr(bytes.size()));
    return true;
  }

  uint32_t tokens_to_finish() override {
    if (ended_) return 0;
    const std::lock_guard lock(grammar_->mutex);
    return plan().tokens;
  }

  bool keep_within(std::span<uint32_t> mask, uint32_t limit) override {
    check_mask(mask);
    const std::lock_guard lock(grammar_->mutex);
    if (!ended_) {
      // The next token of a text that is known to fit stays, whatever is known of the others.
      const int32_t next = limit > 0 && plan().tokens <= limit ? next_of_plan() : -1;
      if (next >= 0 && (mask[static_cast<size_t>(next) / 32] >> (next % 32) & 1U) == 0) {
        throw Error(ErrorKind::kInternal, "a mask lacks a token that finishes the answer");
      }
      if (limit > 0) {
        self().limit(mask, limit - 1);
      } else {
        keep_ends(mask);
      }
      if (next >= 0) mask[static_cast<size_t>(next) / 32] |= 1U << (next % 32);
    }
    return has_any(mask);
  }

  void rollback(int32_t count) override {
    if (count < 0 || static_cast<size_t>(count) > self().length()) {
      throw Error(ErrorKind::kInvalidArgument, "cannot roll back " + std::to_string(count) +
                                                   " tokens: " + std::to_string(self().length()) +
                                                   " have been accepted");
    }
    if (count == 0) return;
    const std::lock_guard lock(grammar_->mutex);
    self().drop(static_cast<size_t>(count));
    ended_ = has_plan_ = false;
  }

  bool is_complete() const override { return ended_ || self().complete(); }

 protected:
  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  std::shared_ptr<Grammar::Impl> grammar_;
  bool ended_ = false;

 private:
  void check_mask(std::span<uint32_t> mask) const {
    if (mask.size() == grammar_->table.mask_words()) return;
    throw Error(ErrorKind::kInvalidArgument, "a mask of " + std::to_string(mask.size()) +
                                                 " words, expected " +
                                                 std::to_string(grammar_->table.mask_words()));
  }
  static bool has_any(std::span<const uint32_t> mask) {
    return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
  }
  void keep_ends(std::span<uint32_t> mask) const {
    std::vector<uint32_t> ends(mask.size());
    for (const int32_t id : grammar_->table.end_ids()) {
      ends[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
    }
    for (size_t i = 0; i < mask.size(); ++i) mask[i] &= ends[i];
  }
  /// A text that finishes the answer from here; followed as long as the tokens follow it.
  const constrain::Finish& plan() {
    if (!has_plan_) plan_ = self().finish();
    has_plan_ = true;
    return plan_;
  }
  int32_t next_of_plan() const {
    const TokenTable::Impl& table = grammar_->table.impl();
    size_t length = 0;
    if (table.count_tokens(plan_.text, &length) == 0) return -1;
    const uint32_t node = table.find(0, std::string_view(plan_.text).substr(0, length));
    return table.ids[table.nodes[node].first_id];
  }

  constrain::Finish plan_;
  bool has_plan_ = false;
};

class JsonConstraint : public ConstraintBase<JsonConstraint> {
 public:
  explicit JsonConstraint(std::shared_ptr<Grammar::Impl> grammar)
      : ConstraintBase(std::move(grammar)),
        machine_(*grammar_->json),
        mask_(machine_, grammar_->table.impl(), *grammar_->terminals),
        finish_(machine_, *grammar_->finish),
        limit_(machine_, grammar_->table.impl(), *grammar_->terminals, finish_) {
    machine_.start(current_);
  }
  JsonConstraint(const JsonConstraint& other, JsonMachine machine)
      : ConstraintBase(other.grammar_),
        machine_(std::move(machine)),
        mask_(machine_, grammar_->table.impl(), *grammar_->terminals),
        finish_(machine_, *grammar_->finish),
        limit_(machine_, grammar_->table.impl(), *grammar_->terminals, finish_),
        current_(other.current_),
        past_(other.past_),
        steps_(other.steps_) {
    ended_ = other.ended_;
  }

  void fill(std::span<uint32_t> mask) { mask_.add(current_, mask); }
  constrain::Finish finish() { return finish_.of(current_); }
  void limit(std::span<uint32_t> mask, uint32_t left) { limit_.keep(current_, mask, left); }
  bool complete() const { return machine_.is_complete(current_); }
  size_t length() const { return steps_.size(); }
  void repeat_state() { push(); }

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
    const std::lock_guard lock(grammar_->mutex);
    std::string out;
    if (ended_) return out;
    const JsonMachine::Mark mark = machine_.mark();
    Configs at = current_, found, next;
    while (out.size() < kMaxForced && !machine_.is_complete(at)) {
      int only = -1;
      for (int byte = 0; byte < 256 && only != 256; ++byte) {
        machine_.step(at, static_cast<uint8_t>(byte), next);
        if (next.empty()) continue;
        only = only < 0 ? byte : 256;
        std::swap(found, next);
      }
      if (only < 0 || only == 256) break;
      out += static_cast<char>(only);
      std::swap(at, found);
    }
    machine_.return_to(mark);
    return out;
  }

  std::unique_ptr<Constraint> fork() const override {
    const std::lock_guard lock(grammar_->mutex);
    return std::make_unique<JsonConstraint>(*this, machine_.fork());
  }

 private:
  /// The state before an accepted token.
  struct Step {
    size_t begin = 0, end = 0;  // in past_
    JsonMachine::Mark mark;
  };
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
  constrain::Finish finish() { return grammar_->finish->of_state(state_); }
  void limit(std::span<uint32_t> mask, uint32_t left) {
    constrain::keep_fitting(grammar_->table.impl(), *grammar_->terminals, *grammar_->finish,
                            grammar_->states(), state_, mask, left);
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
  std::string forced_bytes() override {
    const std::lock_guard lock(grammar_->mutex);
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
  std::unique_ptr<Constraint> fork() const override {
    return std::make_unique<RegexConstraint>(*this);
  }

 private:
  NodeId state_;
  std::vector<NodeId> past_;
};

}  // namespace

Grammar::Grammar(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->terminals =
      std::make_unique<constrain::TerminalMasks>(impl_->states(), impl_->table.impl());
  impl_->finish = std::make_unique<constrain::FinishTexts>(impl_->states(), impl_->json.get(),
                                                           impl_->table.impl());
}

Grammar Grammar::json_schema(const TokenTable& table, std::string_view schema,
                             const SchemaOptions& options) {
  auto impl = std::make_shared<Impl>(table);
  impl->json = std::make_unique<JsonGrammar>(schema, options);
  return Grammar(std::move(impl));
}

Grammar Grammar::json(const TokenTable& table, JsonWhitespace whitespace) {
  auto impl = std::make_shared<Impl>(table);
  impl->json = std::make_unique<JsonGrammar>(whitespace, SchemaOptions{}.max_states);
  return Grammar(std::move(impl));
}

Grammar Grammar::regex(const TokenTable& table, std::string_view pattern) {
  auto impl = std::make_shared<Impl>(table);
  impl->pool = std::make_unique<RegexPool>();
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

Grammar Grammar::choices(const TokenTable& table, std::vector<std::string> texts) {
  if (texts.empty()) throw Error(ErrorKind::kInvalidArgument, "a list of choices that is empty");
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!constrain::is_utf8(texts[i])) {
      throw Error(ErrorKind::kInvalidArgument, "choice " + std::to_string(i) + " is not UTF-8");
    }
  }
  auto impl = std::make_shared<Impl>(table);
  impl->pool = std::make_unique<RegexPool>();
  impl->regex = impl->pool->literals(std::move(texts));
  return Grammar(std::move(impl));
}

std::unique_ptr<Constraint> Grammar::start() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->json) return std::make_unique<JsonConstraint>(impl_);
  return std::make_unique<RegexConstraint>(impl_);
}

Grammar::Statistics Grammar::statistics() const {
  const std::lock_guard lock(impl_->mutex);
  Statistics out;
  out.states = impl_->states().num_nodes();
  out.rows = impl_->states().num_rows();
  if (impl_->json) {
    out.values = impl_->json->num_values();
    out.shapes = impl_->json->num_shapes();
  }
  return out;
}

}  // namespace vitrine
