// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace vitrine::compress {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Pace::Pace(std::vector<double> work, std::function<double()> seconds)
    : left_(std::move(work)), seconds_(seconds ? std::move(seconds) : steady_seconds) {
  left_.push_back(0);
  for (size_t i = left_.size() - 1; i-- > 0;) left_[i] += left_[i + 1];
}

void Pace::begin(size_t part) {
  part_ = part;
  is_begun_ = true;
  began_ = seconds_();
}

void Pace::end(bool counts) {
  is_begun_ = false;
  if (counts) {
    time_ += seconds_() - began_;
    done_ += left_[part_] - left_[part_ + 1];
  }
  ++part_;
}

double Pace::seconds_left() const {
  if (done_ <= 0) return -1;
  const double pace = time_ / done_, left = pace * left_[part_];
  if (!is_begun_) return left;
  // A part that takes longer than its share is about to end.
  return left - std::min(seconds_() - began_, pace * (left_[part_] - left_[part_ + 1]));
}

void ProgressTeller::begin_stage(std::string_view stage, std::vector<double> work) {
  stage_ = stage;
  total_ = std::ssize(work);
  done_ = 0;
  pace_ = Pace(std::move(work));
}

void ProgressTeller::begin(size_t part, std::string_view tensor) {
  done_ = static_cast<int64_t>(part);
  pace_.begin(part);
  tell(tensor);
}

void ProgressTeller::tell(std::string_view tensor) {
  tensor_ = tensor;
  call("");
}

void ProgressTeller::note(std::string_view line) { call(line); }

void ProgressTeller::call(std::string_view note) {
  if (!options_.progress) return;
  options_.progress({.stage = stage_,
                     .done = done_,
                     .total = total_,
                     .tensor = tensor_,
                     .seconds_left = pace_.seconds_left(),
                     .note = note});
}

}  // namespace vitrine::compress
