// SPDX-License-Identifier: Apache-2.0
// Who of those that wait is answered next. One policy is one file with its registration.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/unique_name.h"
#include "vitrine/core.h"

namespace vitrine::serve {

/// A request that waits, as a policy sees it.
struct WaitingRequest {
  double waited = 0;            ///< seconds since it was ready
  int64_t uncached_tokens = 0;  ///< of its prompt, that have to be computed; at least 1
  int priority = 0;             ///< the lowest goes first, where somebody asks
  std::string_view tenant;      ///< whose it is
};

/// Ranks those who wait. Not thread-safe.
class Policy {
 public:
  virtual ~Policy() = default;
  /// Is shown all who wait before they are ranked.
  virtual void look(std::span<const WaitingRequest> /*waiting*/) {}
  /// Returns a number; who has the lowest goes first, of equals the one that came first.
  /// `seconds_per_token`: what a token of a prompt takes, as far as is known.
  virtual double rank(const WaitingRequest& request, double seconds_per_token) const = 0;
  /// Is told what was done for a tenant: tokens of prompts that were computed, and tokens that were
  /// generated.
  virtual void charge(std::string_view /*tenant*/, int64_t /*computed*/, int64_t /*generated*/) {}
};

/// A policy by its name.
struct PolicyKind {
  std::string_view name;                        ///< a literal
  std::unique_ptr<Policy> (*make)() = nullptr;  ///< a new one
};

/// Returns false where the name is taken.
bool register_policy(const PolicyKind& kind);
/// Throws kInvalidArgument, which names those that there are.
std::unique_ptr<Policy> make_policy(std::string_view name);

/// Stands at namespace scope in a policy's file.
#define VITRINE_REGISTER_POLICY(name, type)                                                        \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(policy_is_registered_) =                         \
      ::vitrine::serve::register_policy({name, []() -> std::unique_ptr<::vitrine::serve::Policy> { \
                                           return std::make_unique<type>();                        \
                                         }})

}  // namespace vitrine::serve
