// SPDX-License-Identifier: Apache-2.0
#include "http/kv_event_outlet.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

namespace vitrine::http {

namespace {

constexpr size_t kMostKeptBytes = size_t{64} << 20;
constexpr size_t kMostReplays = 16;                   // who waits at once; more are not heard
constexpr int kRequestsAtOnce = 64;                   // that are read before others are served
constexpr int kMessagesAtOnce = 256;                  // that are sent before new events are
constexpr auto kMostWait = std::chrono::seconds(30);  // for a client that takes nothing
constexpr int64_t kMostFrameBytes = 1024;             // of what clients send
constexpr int kLingerMilliseconds = 500;
constexpr uint64_t kEndOfReplay = std::numeric_limits<uint64_t>::max();

[[noreturn]] void refuse_socket(const std::string& endpoint) {
  throw Error(ErrorKind::kUnavailable, endpoint + " cannot be bound for events about blocks (" +
                                           zmq_strerror(zmq_errno()) +
                                           "); expected another endpoint");
}

void set(void* socket, int option, int value) {
  zmq_setsockopt(socket, option, &value, sizeof value);
}

ZmqSocket make_socket(void* context, int kind, int most_waiting, const std::string& endpoint) {
  ZmqSocket socket(zmq_socket(context, kind), zmq_close);
  if (socket == nullptr) refuse_socket(endpoint);
  set(socket.get(), ZMQ_SNDHWM, most_waiting);
  set(socket.get(), ZMQ_LINGER, kLingerMilliseconds);
  zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMostFrameBytes, sizeof kMostFrameBytes);
  if (endpoint.find('[') != std::string::npos) set(socket.get(), ZMQ_IPV6, 1);
  if (kind == ZMQ_ROUTER)
    set(socket.get(), ZMQ_ROUTER_MANDATORY, 1);  // so that it says who is full
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) refuse_socket(endpoint);
  return socket;
}

std::string bound_endpoint(void* socket) {
  std::array<char, 1024> name{};
  size_t size = name.size();
  if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, name.data(), &size) != 0) return "";
  return name.data();
}

std::string topic_of(std::string topic, const std::string& model) {
  constexpr std::string_view kModel = "{model}";
  for (size_t at = topic.find(kModel); at != std::string::npos;
       at = topic.find(kModel, at + model.size())) {
    topic.replace(at, kModel.size(), model);
  }
  return topic;
}

std::array<unsigned char, 8> big_endian(uint64_t number) {
  std::array<unsigned char, 8> bytes{};
  for (size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = number & 0xFF;
  return bytes;
}

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char c : bytes) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

/// The next message's frames, at most four of them; false where there is none.
bool receive(void* socket, std::vector<std::string>& frames) {
  frames.clear();
  int has_more = 1;
  while (has_more != 0) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&frame);
      return false;
    }
    has_more = zmq_msg_more(&frame);
    if (frames.size() < 4) {
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
    }
    zmq_msg_close(&frame);
  }
  return true;
}

}  // namespace

KvEventOutlet::KvEventOutlet(void* context, const KvEventOptions& options, size_t number,
                             const std::string& model)
    : topic_(topic_of(options.topic, model)),
      most_kept_(options.replay_endpoint.empty() ? 0 : static_cast<size_t>(options.buffer_steps)),
      publisher_(make_socket(
          context, ZMQ_PUB, options.hwm,
          KvEventEndpoint("endpoint", options.endpoint, options.is_public).of_model(number))),
      replay_(nullptr, zmq_close),
      endpoint_(bound_endpoint(publisher_.get())) {
  if (options.replay_endpoint.empty()) return;
  const KvEventEndpoint asked("replay_endpoint", options.replay_endpoint, options.is_public);
  constexpr int kMostWaiting = 1000;
  replay_ = make_socket(context, ZMQ_ROUTER, kMostWaiting, asked.of_model(number));
  replay_endpoint_ = bound_endpoint(replay_.get());
}

void KvEventOutlet::publish(uint64_t sequence, std::string payload) {
  const auto number = big_endian(sequence);
  zmq_send(publisher_.get(), topic_.data(), topic_.size(), ZMQ_SNDMORE);
  zmq_send(publisher_.get(), number.data(), number.size(), ZMQ_SNDMORE);
  zmq_send(publisher_.get(), payload.data(), payload.size(), 0);
  if (most_kept_ == 0) return;
  kept_bytes_ += payload.size();
  kept_.push_back({sequence, std::move(payload)});
  while (kept_.size() > most_kept_ || kept_bytes_ > kMostKeptBytes) {
    kept_bytes_ -= kept_.front().payload.size();
    kept_.pop_front();
  }
}

// A request is [client, nothing, the first number that is missing].
void KvEventOutlet::read_requests(uint64_t next) {
  std::vector<std::string> frames;
  for (int i = 0; i < kRequestsAtOnce && receive(replay_.get(), frames); ++i) {
    if (frames.size() != 3 || !frames[1].empty() || frames[2].size() != sizeof(uint64_t)) continue;
    if (replays_.size() >= kMostReplays) continue;
    replays_.push_back({std::move(frames[0]), from_big_endian(frames[2]), next, Clock::now()});
  }
}

KvEventOutlet::Sending KvEventOutlet::send(const Replay& replay, std::string_view topic,
                                           uint64_t sequence, std::string_view payload) {
  void* const socket = replay_.get();
  // The first frame says whether all will go; the others wait for nothing then.
  if (zmq_send(socket, replay.client.data(), replay.client.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT) <
      0) {
    return zmq_errno() == EAGAIN ? Sending::kFull : Sending::kGone;
  }
  const auto number = big_endian(sequence);
  zmq_send(socket, nullptr, 0, ZMQ_SNDMORE);
  zmq_send(socket, topic.data(), topic.size(), ZMQ_SNDMORE);
  zmq_send(socket, number.data(), number.size(), ZMQ_SNDMORE);
  zmq_send(socket, payload.data(), payload.size(), 0);
  return Sending::kSent;
}

// After the last one comes the end, after which it is gone.
KvEventOutlet::Sending KvEventOutlet::send_next(Replay& replay) {
  const auto sent = std::ranges::lower_bound(kept_, replay.next, {}, &Sent::sequence);
  const bool is_end = sent == kept_.end() || sent->sequence >= replay.end;
  const Sending sending = is_end ? send(replay, "", kEndOfReplay, "")
                                 : send(replay, topic_, sent->sequence, sent->payload);
  if (sending != Sending::kSent) return sending;
  if (is_end) return Sending::kGone;
  replay.next = sent->sequence + 1;
  replay.moved = Clock::now();
  return Sending::kSent;
}

void KvEventOutlet::replay(uint64_t next) {
  if (replay_ == nullptr) return;
  read_requests(next);
  int left = kMessagesAtOnce;
  bool has_moved = true;
  while (has_moved && left > 0) {  // a message each by turns
    has_moved = false;
    for (auto one = replays_.begin(); one != replays_.end() && left > 0;) {
      const Sending sending = send_next(*one);
      if (sending == Sending::kSent) has_moved = true, --left;
      const bool waits_too_long =
          sending == Sending::kFull && Clock::now() - one->moved > kMostWait;
      one = sending == Sending::kGone || waits_too_long ? replays_.erase(one) : std::next(one);
    }
  }
}

}  // namespace vitrine::http
