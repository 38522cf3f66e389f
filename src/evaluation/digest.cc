// SPDX-License-Identifier: Apache-2.0
#include "evaluation/digest.h"

#include <bit>

#include "core/sha256.h"

namespace vitrine::evaluation {

namespace {

/// Hashes numbers with their counts, so that no two lists can be taken for one.
class BitHash {
 public:
  void add(uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    hash_.update(bytes);
  }
  void add(const std::string& text) {
    add(text.size());
    hash_.update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  void add(std::span<const int32_t> ids) {
    add(ids.size());
    for (const int32_t id : ids) add(static_cast<uint32_t>(id));
  }
  void add(std::span<const double> values) {
    add(values.size());
    for (const double value : values) add(std::bit_cast<uint64_t>(value));
  }
  void add(std::span<const TextPosition> positions) {
    add(positions.size());
    for (const TextPosition& position : positions) {
      add(static_cast<uint32_t>(position.token));
      add(uint64_t{std::bit_cast<uint32_t>(position.logprob)});
      add(position.best.size());
      for (const auto& [id, logprob] : position.best) {
        add(static_cast<uint32_t>(id));
        add(uint64_t{std::bit_cast<uint32_t>(logprob)});
      }
    }
  }
  std::string finish() { return hex(hash_.finish()); }

 private:
  Sha256 hash_;
};

}  // namespace

std::string ids_sha256(std::span<const int32_t> ids) {
  Sha256 hash;
  for (const int32_t id : ids) {
    const auto bits = static_cast<uint32_t>(id);
    const uint8_t bytes[4] = {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8),
                              static_cast<uint8_t>(bits >> 16), static_cast<uint8_t>(bits >> 24)};
    hash.update(bytes);
  }
  return hex(hash.finish());
}

std::string item_digest(const EvaluatedItem& item) {
  BitHash hash;
  hash.add(item.prompt_sha256);
  hash.add(item.tokens);
  // A server that tells no ids is compared by its text.
  hash.add(item.tokens.empty() ? item.answer : std::string());
  hash.add(item.logprobs);
  hash.add(item.choice_logprobs);
  hash.add(item.reference_logprob ? std::bit_cast<uint64_t>(*item.reference_logprob) : 0);
  hash.add(item.positions);
  return hash.finish();
}

}  // namespace vitrine::evaluation
