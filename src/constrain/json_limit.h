// SPDX-License-Identifier: Apache-2.0
// Which tokens of a mask leave room to finish JSON text. What many tokens leave alike is asked
// once: within a string nearly all do, and those that close one by what stands behind its quote.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json_mask.h"
#include "token_limit.h"

namespace vitrine::constrain {

class JsonLimit {
 public:
  JsonLimit(JsonMachine& machine, const TokenTable::Impl& table, TerminalMasks& terminals,
            JsonFinish& finish, FinishTexts& texts)
      : machine_(machine), table_(table), terminals_(terminals), finish_(finish), texts_(texts) {}

  /// Takes out of `mask`, but for the tokens that end the sequence, what leaves more than `left`
  /// tokens to finish.
  void keep(const Configs& configs, std::span<uint32_t> mask, uint32_t left);

 private:
  /// What is known of one reading: which tokens of check_ leave room in it, and which do not. A
  /// token that is in neither is not decided.
  struct Decided {
    std::vector<uint32_t> fits, misses;
  };
  /// What tokens leave to come within one frame, whichever token of its kind it is.
  struct TailBounds {
    std::vector<uint32_t> tokens;  // by TokenTable::Impl::Plain::tails; kUnasked
  };
  struct KeyBounds {
    std::vector<uint32_t> kinds;  // by kind of token that stays within it; kUnasked
    TailBounds tails;
  };
  static constexpr uint32_t kUnasked = kNoBound - 1;

  void decide(const Config& config, bool is_only, uint32_t left);
  void decide_string(const Config& config, bool is_only, uint32_t left);
  void decide_plain(uint32_t least, bool is_only, uint32_t room);
  void decide_pattern(NodeId state, uint32_t room);
  void decide_key(const Config& config, uint32_t left);
  void decide_tails(const Configs& behind, TailBounds& bounds, bool is_key, uint32_t left);
  uint32_t tail_bound(const Configs& behind, std::string_view tail);
  void set(std::span<const int32_t> ids, bool is_fit);
  bool is_asked(std::span<const int32_t> ids) const;
  void decide_open_key(const Config& config, uint8_t letter, KeyBounds& bounds, uint32_t left);
  void decide_patterned_key(const Config& config, const std::string& key, uint32_t left);
  void collect_known(const Config& config, const std::string& key);
  uint8_t find_letter(const ObjectShape& shape, const std::string& key, uint64_t& met);
  void find_beginnings();
  void set_apart();

  bool is_hopeless(const Config& config, uint32_t left);
  void keep_checked(const Configs& configs, std::span<uint32_t> mask, uint32_t left);
  void skip_hopeless(const Configs& configs, std::span<uint32_t> mask, uint32_t left);

  JsonMachine& machine_;
  const TokenTable::Impl& table_;
  TerminalMasks& terminals_;
  JsonFinish& finish_;
  FinishTexts& texts_;
  std::vector<uint32_t> check_;
  Decided decided_;
  std::vector<uint32_t> all_miss_;
  std::vector<uint32_t> apart_;         // tokens that may spell a key which the object names or has
  std::vector<std::string> known_;      // what is left of such keys
  std::array<bool, 256> differs_ = {};  // bytes that may lead to one, or to other rules
  bool is_open_ = false;                // some rule does not show yet whether it holds
  std::vector<Configs> places_;
  std::vector<JsonMachine::Mark> marks_;
  std::unordered_map<uint64_t, TailBounds> strings_;  // by the frame's serial
  std::unordered_map<uint64_t, KeyBounds> keys_;      // by the frame's serial and its rules
  // By the frame's serial, then by what is left of the key and of each rule.
  std::unordered_map<uint64_t, std::map<std::vector<NodeId>, uint32_t>> patterned_keys_;
};

}  // namespace vitrine::constrain
