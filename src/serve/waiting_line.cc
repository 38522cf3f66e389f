// SPDX-License-Identifier: Apache-2.0
#include "serve/waiting_line.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace vitrine::serve {

WaitingLine::WaitingLine(const ServerOptions& options)
    : policy_(make_policy(options.policy)), max_wait_(options.max_wait_seconds) {}

void WaitingLine::add(std::unique_ptr<Job> job) {
  const auto behind = std::ranges::upper_bound(
      jobs_, job->ready, {}, [](const std::unique_ptr<Job>& each) { return each->ready; });
  jobs_.insert(behind, std::move(job));
}

std::vector<std::unique_ptr<Job>> WaitingLine::take_if(
    const std::function<bool(const Job&)>& leaves) {
  const auto first = std::stable_partition(
      jobs_.begin(), jobs_.end(), [&](const std::unique_ptr<Job>& job) { return !leaves(*job); });
  std::vector<std::unique_ptr<Job>> left(std::make_move_iterator(first),
                                         std::make_move_iterator(jobs_.end()));
  jobs_.erase(first, jobs_.end());
  return left;
}

size_t WaitingLine::choose(double now, double seconds_per_token,
                           const std::function<int64_t(Job&)>& uncached) {
  requests_.clear();
  indices_.clear();
  for (size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = *jobs_[i];
    const int64_t tokens = uncached(job);
    if (tokens < 0) continue;
    const double waited = now - job.ready;
    if (waited > max_wait_ && requests_.empty()) return i;
    requests_.push_back({waited, std::max<int64_t>(tokens, 1), job.priority, job.tenant});
    indices_.push_back(i);
  }
  if (requests_.empty()) return jobs_.size();
  policy_->look(requests_);
  const auto first = std::ranges::min_element(requests_, {}, [&](const WaitingRequest& request) {
    return policy_->rank(request, seconds_per_token);
  });
  return indices_[static_cast<size_t>(first - requests_.begin())];
}

double WaitingLine::rank(const Job& job, int64_t left, double now, double seconds_per_token) const {
  const double waited = now - job.ready;
  if (waited > max_wait_) return -std::numeric_limits<double>::infinity();
  return policy_->rank({waited, std::max<int64_t>(left, 1), job.priority, job.tenant},
                       seconds_per_token);
}

std::unique_ptr<Job> WaitingLine::take(size_t index) {
  std::unique_ptr<Job> job = std::move(jobs_[index]);
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(index));
  return job;
}

}  // namespace vitrine::serve
