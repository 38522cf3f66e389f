// SPDX-License-Identifier: Apache-2.0
#include "least_size.h"

#include <algorithm>

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxValueDepth = 200;
constexpr size_t kMaxValues = 10000;
constexpr uint64_t kLongestSpelled = 4;  // bytes of a character that an escape has begun

ByteSet every_byte() { return ByteSet::range(0, 255); }

ByteSet bytes_of(std::string_view text) {
  ByteSet out;
  for (const char byte : text) out.add(static_cast<uint8_t>(byte));
  return out;
}

}  // namespace

uint64_t LeastSize::of_state(NodeId state) {
  const Node node = pool_.node(state);
  if (node.nullable) return 0;
  if (const auto known = states_.find(state); known != states_.end()) return known->second;
  uint64_t size = 1;
  switch (node.kind) {
    case NodeKind::kEmpty: size = kNoSize; break;
    case NodeKind::kCat: {  // without recursion along a long sequence
      size = 0;
      NodeId at = state;
      for (; pool_.node(at).kind == NodeKind::kCat; at = pool_.node(at).b) {
        size = add_sizes(size, of_state(pool_.node(at).a));
      }
      size = add_sizes(size, of_state(at));
      break;
    }
    case NodeKind::kOr:
      size = kNoSize;
      for (const NodeId member : pool_.list(node)) size = std::min(size, of_state(member));
      break;
    case NodeKind::kAnd:
      for (const NodeId member : pool_.list(node)) size = std::max(size, of_state(member));
      break;
    case NodeKind::kRepeat: size = multiply_sizes(of_state(node.a), node.low); break;
    case NodeKind::kLiterals:
      size = kNoSize;
      pool_.any_literal(state, [&size](std::string_view text) {
        size = std::min<uint64_t>(size, text.size());
        return false;
      });
      break;
    case NodeKind::kJsonBody:
      size = of_state(node.a);
      if (node.b != 0) size = std::max(size, kLongestSpelled) - kLongestSpelled;
      size = add_sizes(size, 1);
      break;
    default: break;
  }
  return states_[state] = size;
}

ByteSet LeastSize::bytes_of_state(NodeId state) {
  if (const auto known = bytes_.find(state); known != bytes_.end()) return known->second;
  const Node node = pool_.node(state);
  ByteSet out;
  switch (node.kind) {
    case NodeKind::kEmpty:
    case NodeKind::kEpsilon: break;
    case NodeKind::kBytes: out = pool_.byte_set(node); break;
    case NodeKind::kCat: {
      NodeId at = state;
      for (; pool_.node(at).kind == NodeKind::kCat; at = pool_.node(at).b) {
        out = out | bytes_of_state(pool_.node(at).a);
      }
      out = out | bytes_of_state(at);
      break;
    }
    case NodeKind::kOr:
      for (const NodeId member : pool_.list(node)) out = out | bytes_of_state(member);
      break;
    case NodeKind::kAnd:
      out = every_byte();
      for (const NodeId member : pool_.list(node)) out = out & bytes_of_state(member);
      break;
    case NodeKind::kRepeat: out = bytes_of_state(node.a); break;
    case NodeKind::kLiterals:
      pool_.any_literal(state, [&out](std::string_view text) {
        out = out | bytes_of(text);
        return false;
      });
      break;
    case NodeKind::kNumber: out = bytes_of("-.0123456789"); break;
    case NodeKind::kJsonBody:  // any character may be spelt as an escape
      out = bytes_of_state(node.a) | bytes_of("\"\\/0123456789abcdefABCDEFnrtu");
      break;
    default: out = every_byte();
  }
  return bytes_[state] = out;
}

uint64_t LeastSize::of_value(ValueId id) {
  if (const auto known = values_.find(id); known != values_.end()) return known->second;
  // No shortest text has the value within itself; of what is too deep little is said.
  if (values_.size() >= kMaxValueDepth) return 1;
  values_[id] = 1;
  const Value& value = grammar_->value(id);
  uint64_t size = of_state(value.scalar);
  const std::vector<ShapeId> objects = value.objects, arrays = value.arrays;
  for (const ShapeId shape : objects) size = std::min(size, of_object(grammar_->object(shape)));
  for (const ShapeId shape : arrays) size = std::min(size, of_array(grammar_->array(shape)));
  return values_[id] = size;
}

uint64_t LeastSize::of_object(const ObjectShape& shape) {
  constexpr uint64_t kMember = 4;  // of an unnamed one: quotes, a colon and a value
  uint64_t size = 2, count = 0;
  for (const ObjectShape::Named& named : shape.named) {
    if (!named.required) continue;
    ++count;
    size = add_sizes(size, add_sizes(of_value(named.value), named.name->size() + 3));
  }
  if (shape.min > count) size = add_sizes(size, multiply_sizes(kMember, shape.min - count));
  count = std::max<uint64_t>(count, shape.min);
  return add_sizes(size, count > 0 ? count - 1 : 0);  // commas
}

uint64_t LeastSize::of_array(const ArrayShape& shape) {
  uint64_t size = 2, count = 0;
  for (const ValueId item : shape.prefix) {
    if (count == shape.min) break;
    size = add_sizes(size, of_value(item));
    ++count;
  }
  if (count < shape.min) {
    size = add_sizes(size, multiply_sizes(of_value(shape.rest), shape.min - count));
  }
  return add_sizes(size, shape.min > 0 ? shape.min - 1 : 0);
}

ByteSet LeastSize::bytes_of_value(ValueId id) {
  ByteSet out = bytes_of("{}[],:\" \t\r\n");
  std::set<ValueId> seen = {id};
  std::vector<ValueId> open = {id};
  const auto add = [&](ValueId next) {
    if (seen.insert(next).second) open.push_back(next);
  };
  while (!open.empty()) {
    if (seen.size() > kMaxValues) return every_byte();
    const ValueId at = open.back();
    open.pop_back();
    if (!grammar_->is_live(at)) continue;
    const Value& value = grammar_->value(at);
    out = out | bytes_of_state(value.scalar);
    if (!value.objects.empty()) return every_byte();  // a key may have an escape of any byte
    for (const ShapeId shape : std::vector<ShapeId>(value.arrays)) {
      const ArrayShape& array = grammar_->array(shape);
      for (const ValueId item : array.prefix) add(item);
      add(array.rest);
      for (const auto& contains : array.contains) add(contains.match);
    }
  }
  return out;
}

uint32_t least_tokens(const TokenTable::Impl& table, uint64_t size, const ByteSet& bytes) {
  uint64_t longest = 1;
  for (const std::string& token : table.bytes) {
    if (token.size() > longest && std::ranges::all_of(token, [&bytes](char byte) {
          return bytes.contains(static_cast<uint8_t>(byte));
        })) {
      longest = token.size();
    }
  }
  const uint64_t tokens = size / longest + (size % longest != 0 ? 1 : 0);
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, kUnbounded - 1));
}

}  // namespace vitrine::constrain
