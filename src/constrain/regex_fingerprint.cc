// SPDX-License-Identifier: Apache-2.0
// What an expression says, in 128 bits that are the same in every pool.
#include <array>
#include <random>
#include <utility>

#include "regex_pool.h"

namespace vitrine::constrain {

namespace {

/// The product's halves folded, with a secret key on both sides, so that collisions cannot be made.
class Mixer {
 public:
  Mixer() {
    for (size_t i = 0; i < state_.size(); ++i) state_[i] = secret()[i];
  }
  Mixer& add(uint64_t value) {
    for (size_t i = 0; i < state_.size(); ++i) {
      state_[i] = fold(state_[i] ^ value, secret()[2 + i]) + (value ^ secret()[4 + i]);
    }
    return *this;
  }
  Mixer& add(const Fingerprint& of) { return add(of.low).add(of.high); }
  Mixer& add(std::string_view text) {
    add(text.size());
    uint64_t word = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      word = word << 8 | static_cast<uint8_t>(text[i]);
      if (i % 8 == 7) add(std::exchange(word, 0));
    }
    return add(word);
  }
  Fingerprint take() const {
    return {fold(state_[0] ^ secret()[6], secret()[2]), fold(state_[1] ^ secret()[7], secret()[3])};
  }

 private:
  static uint64_t fold(uint64_t x, uint64_t y) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(x) * y;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  static const std::array<uint64_t, 8>& secret() {
    static const std::array<uint64_t, 8> kSecret = [] {
      std::random_device device;
      std::array<uint64_t, 8> out;
      for (uint64_t& word : out) word = (uint64_t{device()} << 32 | device()) | 1;
      return out;
    }();
    return kSecret;
  }
  std::array<uint64_t, 2> state_;
};

}  // namespace

Fingerprint RegexPool::fingerprint(NodeId id) {
  if (id < fingerprints_.size() && is_known(id)) return fingerprints_[id];
  must_write();
  if (fingerprints_.size() < nodes_.size()) fingerprints_.resize(nodes_.size());
  // Parts first, without recursion: a long text is a deep expression.
  std::vector<NodeId> open = {id};
  while (!open.empty()) {
    const NodeId top = open.back();
    const size_t size = open.size();
    const auto need = [&](NodeId part) {
      if (!is_known(part)) open.push_back(part);
    };
    const Node& node = nodes_[top];
    switch (node.kind) {
      case NodeKind::kCat: need(node.b); [[fallthrough]];
      case NodeKind::kNot:
      case NodeKind::kRepeat:
      case NodeKind::kJsonBody: need(node.a); break;
      case NodeKind::kOr:
      case NodeKind::kAnd:
        for (const NodeId member : lists_[node.a]) need(member);
        break;
      default: break;
    }
    if (open.size() > size) continue;
    open.pop_back();
    if (!is_known(top)) fingerprints_[top] = fingerprint_of(top);
  }
  return fingerprints_[id];
}

/// The fingerprint of a node whose parts are known.
Fingerprint RegexPool::fingerprint_of(NodeId id) const {
  const Node node = nodes_[id];
  Mixer mixer;
  mixer.add(static_cast<uint64_t>(node.kind));
  switch (node.kind) {
    case NodeKind::kBytes:
      for (const uint64_t word : byte_sets_[node.a].words) mixer.add(word);
      break;
    case NodeKind::kCat: mixer.add(fingerprints_[node.a]).add(fingerprints_[node.b]); break;
    case NodeKind::kOr:
    case NodeKind::kAnd: {
      // Members are in the order of this pool's numbers: their sum knows no order.
      Fingerprint sum;
      for (const NodeId member : lists_[node.a]) {
        const Fingerprint one = fingerprints_[member];
        sum.low += one.low;
        sum.high += one.high;
      }
      mixer.add(lists_[node.a].size()).add(sum);
      break;
    }
    case NodeKind::kNot: mixer.add(fingerprints_[node.a]); break;
    case NodeKind::kRepeat: mixer.add(fingerprints_[node.a]).add(node.low).add(node.high); break;
    case NodeKind::kLiterals:
      for (uint32_t i = node.low; i < node.high; ++i) {
        mixer.add(std::string_view(literal_sets_[node.a][i]).substr(node.b));
      }
      break;
    case NodeKind::kNumber: {
      const NumberBound& bound = bounds_[node.a];
      mixer.add(static_cast<uint64_t>(bound.op)).add(bound.value.negative ? 1 : 0);
      mixer.add(bound.value.integer).add(bound.value.fraction).add(bound.modulus).add(bound.scale);
      mixer.add(node.b).add(node.low);
      break;
    }
    case NodeKind::kWalk: {
      for (const auto& row : automata_[node.a].rows) {
        for (size_t byte = 0; byte < row.size(); byte += 4) {
          mixer.add(uint64_t{row[byte]} << 48 | uint64_t{row[byte + 1]} << 32 |
                    uint64_t{row[byte + 2]} << 16 | row[byte + 3]);
        }
      }
      mixer.add(node.b).add(lists_[node.low].size());
      for (const uint32_t state : lists_[node.low]) mixer.add(state);
      break;
    }
    case NodeKind::kJsonBody: mixer.add(fingerprints_[node.a]).add(node.b); break;
    default: break;
  }
  return mixer.take();
}

}  // namespace vitrine::constrain
