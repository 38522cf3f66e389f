// SPDX-License-Identifier: Apache-2.0
// What wakes the coroutine of a connection: bytes that came, events of its answers, time.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <mutex>

namespace vitrine::http {

namespace asio = boost::asio;

/// For the I/O thread, but for the rope. One coroutine waits.
class Bell {
 public:
  using Clock = std::chrono::steady_clock;

  /// Rings the bell from any thread, and does nothing once the bell is gone.
  class Rope : public std::enable_shared_from_this<Rope> {
   public:
    /// Many calls before the coroutine runs wake it once.
    void pull() {
      const std::lock_guard lock(mutex_);
      if (bell_ == nullptr || is_posted_) return;
      is_posted_ = true;
      asio::post(bell_->io_, [self = shared_from_this()] { self->ring(); });
    }

   private:
    friend class Bell;
    void ring() {
      const std::lock_guard lock(mutex_);
      is_posted_ = false;
      if (bell_ != nullptr) bell_->ring();
    }

    std::mutex mutex_;
    Bell* bell_ = nullptr;
    bool is_posted_ = false;
  };

  explicit Bell(asio::io_context& io) : io_(io), timer_(io) { rope_->bell_ = this; }
  ~Bell() {
    const std::lock_guard lock(rope_->mutex_);
    rope_->bell_ = nullptr;
  }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  const std::shared_ptr<Rope>& rope() const { return rope_; }

  void ring() {
    has_rung_ = true;
    timer_.cancel();
  }

  /// Returns when it has been rung since the last wait, or at the deadline.
  asio::awaitable<void> wait_until(Clock::time_point deadline) {
    if (!has_rung_) {
      timer_.expires_at(deadline);
      boost::system::error_code ignored;
      co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    has_rung_ = false;
  }

 private:
  asio::io_context& io_;
  asio::steady_timer timer_;
  bool has_rung_ = false;
  const std::shared_ptr<Rope> rope_ = std::make_shared<Rope>();
};

}  // namespace vitrine::http
