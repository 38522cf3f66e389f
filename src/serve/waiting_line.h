// SPDX-License-Identifier: Apache-2.0
// Those who wait for a place, and who of them goes next.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "serve/job.h"
#include "serve/policy.h"
#include "vitrine/serve.h"

namespace vitrine::serve {

/// Asks a policy, but for those who have waited longer than ServerOptions::max_wait_seconds: they
/// go first, in the order in which they came. So a request waits at most so long beyond the time in
/// which all that came before it are served. Not thread-safe.
class WaitingLine {
 public:
  explicit WaitingLine(const ServerOptions& options);

  /// A job takes its place by Job::ready, also one that comes back.
  void add(std::unique_ptr<Job> job);
  size_t size() const { return jobs_.size(); }
  bool empty() const { return jobs_.empty(); }
  const std::vector<std::unique_ptr<Job>>& jobs() const { return jobs_; }
  /// Those for which it holds leave.
  std::vector<std::unique_ptr<Job>> take_if(const std::function<bool(const Job&)>& leaves);

  /// Returns the index of the job that goes next, or size() where there is none. `uncached(job)`:
  /// the tokens of its prompt that have to be computed; below 0: it cannot go now.
  size_t choose(double now, double seconds_per_token, const std::function<int64_t(Job&)>& uncached);
  /// Where a job stands among those whose prompts are being computed, with so many tokens left: the
  /// lowest goes first, of equals the one that was admitted first.
  double rank(const Job& job, int64_t left, double now, double seconds_per_token) const;
  std::unique_ptr<Job> take(size_t index);
  Policy& policy() { return *policy_; }

 private:
  std::unique_ptr<Policy> policy_;
  double max_wait_;
  std::vector<std::unique_ptr<Job>> jobs_;  // by Job::ready
  std::vector<WaitingRequest> requests_;
  std::vector<size_t> indices_;  // [requests] of the jobs
};

}  // namespace vitrine::serve
