// SPDX-License-Identifier: Apache-2.0
#include "serve/request_state.h"

#include <algorithm>

namespace vitrine {

namespace serve {

namespace {

double seconds_between(RequestState::Clock::time_point from, RequestState::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

std::optional<ServeEvent> RequestState::next(std::optional<Clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  const auto has_news = [this] { return !events_.empty() || is_read_; };
  if (deadline) {
    if (!changed_.wait_until(lock, *deadline, has_news)) return std::nullopt;
  } else {
    changed_.wait(lock, has_news);
  }
  if (events_.empty()) return std::nullopt;
  ServeEvent event = std::move(events_.front());
  events_.pop_front();
  is_read_ = event.kind == ServeEvent::Kind::kFinish;
  // Half of them, so that an answer that comes back has something to do.
  const bool catches_up = is_behind_ && events_.size() <= most_unread / 2;
  if (catches_up) is_behind_ = false;
  lock.unlock();
  if (catches_up && wake) wake();
  return event;
}

void RequestState::cancel() {
  if (!cancelled.exchange(true) && wake) wake();
}

bool RequestState::is_finished() const {
  const std::lock_guard lock(mutex_);
  return is_read_;
}

void RequestState::push(ServeEvent event) {
  {
    const std::lock_guard lock(mutex_);
    if (is_ended_) return;
    is_ended_ = event.kind == ServeEvent::Kind::kFinish;
    events_.push_back(std::move(event));
    is_behind_ = is_behind_ || events_.size() >= most_unread;
  }
  changed_.notify_all();
  if (request.on_event) request.on_event();
}

bool RequestState::is_reader_behind() const {
  const std::lock_guard lock(mutex_);
  return is_behind_;
}

bool RequestState::take(const TokenEvent& event) {
  const Clock::time_point now = Clock::now();
  if (counts.new_tokens == 0) {
    counts.first_token_seconds = seconds_between(submitted, now);
    if (on_first) on_first(counts.first_token_seconds);
  } else {
    const double gap = seconds_between(last_token, now);
    counts.longest_gap_seconds = std::max(counts.longest_gap_seconds, gap);
    if (on_gap) on_gap(gap);
  }
  last_token = now;
  ++counts.new_tokens;
  tell_prompt(event.prompt_logprobs);
  if (std::exchange(attempt, event.attempt) != event.attempt) {
    unscored.clear();
    num_scored = 0;
    reader.emplace(*tokenizer, form);
    ServeEvent restart;
    restart.kind = ServeEvent::Kind::kRestart;
    push(std::move(restart));
  }
  ServeEvent shown;
  shown.token = event.token;
  shown.seconds = seconds_between(submitted, now);
  shown.counts = counts;
  ReadText read = reader->add(event.token, event.is_complete);
  shown.text = std::move(read.text);
  shown.deltas = std::move(read.deltas);
  unscored.push_back(std::move(shown));
  show(event.logprobs, request.logprobs < 0);
  return !reader->is_stopped();
}

// Tokens are shown with their log-probabilities, which may come later than they do.
void RequestState::show(std::span<const TokenLogprobs> logprobs, bool is_all) {
  while (!unscored.empty() && (is_all || num_scored < logprobs.size())) {
    if (num_scored < logprobs.size()) unscored.front().logprobs = logprobs[num_scored];
    ++num_scored;
    push(std::move(unscored.front()));
    unscored.pop_front();
  }
}

void RequestState::tell_prompt(std::span<const TokenLogprobs> logprobs) {
  const bool is_asked = request.prompt_logprobs >= 0 || request.tells_prompt;
  if (!is_asked || std::exchange(is_prompt_told_, true)) return;
  ServeEvent told;
  told.kind = ServeEvent::Kind::kPrompt;
  told.prompt = prompt;
  told.prompt_logprobs.assign(logprobs.begin(), logprobs.end());
  push(std::move(told));
}

// Which message the text behind `before` stands in: the last one whose content has begun by then.
std::string RequestState::section_at(const std::string& before) const {
  if (request.messages.empty()) return "prompt";
  size_t at = 0, section = 0;
  for (size_t i = 0; i < request.messages.size(); ++i) {
    // A template may trim what a message says: its first line is looked for.
    const std::string& content = request.messages[i].content;
    const size_t found = form.prompt.find(content.substr(0, content.find('\n')), at);
    if (found == std::string::npos) continue;
    if (found > before.size()) break;
    section = i;
    at = found;
  }
  return "messages[" + std::to_string(section) + "] (" + request.messages[section].role + ")";
}

PromptBreak RequestState::told_break() const {
  const auto position = static_cast<size_t>(prefix_break.position);
  PromptBreak told;
  told.position = prefix_break.position;
  told.changed_tokens = prefix_break.changed;
  told.lost_tokens = prefix_break.lost;
  told.before = tokenizer->decode(prefix_break.kept, false);
  told.after = tokenizer->decode(
      std::span(prompt).subspan(position, static_cast<size_t>(prefix_break.changed)), false);
  told.section = section_at(tokenizer->decode(std::span(prompt).first(position), false));
  return told;
}

void RequestState::finish(JobEnd end) {
  if (reader) {
    if (!end.error) tell_prompt(end.result.prompt_logprobs);
    show(end.result.logprobs, /*is_all=*/true);
  }
  ServeEvent last;
  last.kind = ServeEvent::Kind::kFinish;
  last.reason = end.result.reason;
  last.error = std::move(end.error);
  if (reader) {
    ReadText rest = reader->finish();
    last.text = std::move(rest.text);
    last.deltas = std::move(rest.deltas);
    last.is_stop_string = reader->is_stopped();
    last.stop = reader->stop();
    if (last.is_stop_string) last.reason = StopReason::kEndOfText;
    if (reader->answer() != nullptr) {
      last.answer = std::make_shared<const ChatAnswer>(*reader->answer());
    }
  }
  counts.total_seconds = seconds_between(submitted, Clock::now());
  last.seconds = counts.total_seconds;
  last.counts = counts;
  if (prefix_break.lost > 0) last.prompt_break = told_break();
  if (!given_prompt.empty()) {
    last.stable_prompt = std::move(prompt);
    last.given_prompt = std::move(given_prompt);
  }
  if (on_finish) on_finish(last);
  if (request.on_end) request.on_end(last);
  push(std::move(last));
}

}  // namespace serve

/// Cancels where the last copy goes.
struct ServedRequest::Handle {
  explicit Handle(std::shared_ptr<serve::RequestState> state) : state(std::move(state)) {}
  ~Handle() { state->cancel(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  std::shared_ptr<serve::RequestState> state;
};

ServedRequest::ServedRequest(std::shared_ptr<serve::RequestState> state)
    : handle_(std::make_shared<Handle>(std::move(state))) {}

std::optional<ServeEvent> ServedRequest::next() { return handle_->state->next(std::nullopt); }

std::optional<ServeEvent> ServedRequest::next_until(
    std::chrono::steady_clock::time_point deadline) {
  return handle_->state->next(deadline);
}

void ServedRequest::cancel() { handle_->state->cancel(); }
bool ServedRequest::is_finished() const { return handle_->state->is_finished(); }
uint64_t ServedRequest::id() const { return handle_->state->id; }

}  // namespace vitrine
