// SPDX-License-Identifier: Apache-2.0
// The tokens that may come next in JSON text.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "json_machine.h"
#include "terminal_mask.h"

namespace vitrine::constrain {

class JsonMask {
 public:
  JsonMask(JsonMachine& machine, const TokenTable::Impl& table, TerminalMasks& terminals)
      : machine_(machine), table_(table), terminals_(terminals) {}

  /// Adds the tokens that may come next to `words`.
  void add(const Configs& configs, std::span<uint32_t> words);

 private:
  void add_one(const Config& config, std::span<uint32_t> words);
  void add_string(const Config& config, std::span<uint32_t> words);
  bool add_unique_string(const Config& config, std::span<uint32_t> words);
  void clear_used(NodeId content, std::string_view rest, const std::vector<std::string>& used,
                  std::span<uint32_t> mask) const;
  bool takes(const Config& config, int32_t id);
  void add_plain_string(const Config& config, uint32_t low, uint32_t high,
                        std::span<uint32_t> words);
  void add_open_key(const Config& config, std::span<uint32_t> words);
  void add_after_string(const Config& config, const std::vector<uint32_t>& branches, uint64_t list,
                        std::span<uint32_t> words);
  void add_path(const Config& config, uint32_t from, uint32_t node, std::span<uint32_t> words);
  bool add_opening(const Config& config, uint32_t node, std::span<uint32_t> words);
  void walk(uint32_t node, const Configs& configs, std::span<uint32_t> words, size_t level);
  void walk_spaced(const Configs& configs, std::span<uint32_t> words, size_t level);
  void enter(uint32_t node, const Configs& configs, std::span<uint32_t> words, size_t level);
  void set_node(uint32_t node, std::span<uint32_t> words) const;
  void clear_node(uint32_t node, std::span<uint32_t> words) const;
  bool is_open_key(const Config& config) const;
  Configs& buffer(size_t level);

  JsonMachine& machine_;
  const TokenTable::Impl& table_;
  TerminalMasks& terminals_;
  std::deque<Configs> buffers_;
  std::vector<uint32_t> scratch_;
  // What may follow a string within one frame, by the list of places where tokens leave it.
  struct AfterKey {
    uint64_t serial, list;
    bool operator==(const AfterKey&) const = default;
  };
  struct AfterHash {
    size_t operator()(const AfterKey& key) const { return mix_hash(key.serial, key.list); }
  };
  std::unordered_map<AfterKey, std::vector<int32_t>, AfterHash> after_;
};

}  // namespace vitrine::constrain
