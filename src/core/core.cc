// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <memory>
#include <mutex>

#include "vitrine/core.h"

namespace vitrine {

std::string_view error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument: return "invalid argument";
    case ErrorKind::kBadFile: return "bad file";
    case ErrorKind::kUnsupported: return "unsupported";
    case ErrorKind::kUnavailable: return "unavailable";
    case ErrorKind::kIo: return "i/o error";
    case ErrorKind::kOutOfMemory: return "out of memory";
    case ErrorKind::kCancelled: return "cancelled";
    case ErrorKind::kInternal: return "internal error";
  }
  return "unknown";
}

namespace {

// A message is one line, whatever it quotes.
std::string one_line(const std::string& message) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string line;
  for (const char c : message) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (code < 0x20 || code == 0x7f) {
      line += {'\\', 'x', kHex[code / 16], kHex[code % 16]};
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

Error::Error(ErrorKind kind, const std::string& message)
    : std::runtime_error(one_line(message)), kind_(kind) {}

bool Error::is_user_error() const noexcept {
  return kind_ == ErrorKind::kInvalidArgument || kind_ == ErrorKind::kBadFile ||
         kind_ == ErrorKind::kUnsupported || kind_ == ErrorKind::kUnavailable;
}

size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16: return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
    case DType::kF8E4M3: return 1;
    case DType::kI64:
    case DType::kF64: return 8;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kI8: return "I8";
    case DType::kU8: return "U8";
    case DType::kI16: return "I16";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kBool: return "BOOL";
    case DType::kF64: return "F64";
    case DType::kF8E4M3: return "F8_E4M3";
  }
  return "?";
}

Device Device::parse(std::string_view text) {
  if (text == "cpu") return {DeviceKind::kCpu, 0};
  if (text == "mps") return {DeviceKind::kMps, 0};
  if (text == "cuda") return {DeviceKind::kCuda, 0};
  if (text.starts_with("cuda:")) {
    int index = -1;
    const char* first = text.data() + 5;
    const char* last = text.data() + text.size();
    auto [end, status] = std::from_chars(first, last, index);
    if (status == std::errc() && end == last && index >= 0 && index < 64) {
      return {DeviceKind::kCuda, index};
    }
  }
  throw Error(ErrorKind::kInvalidArgument,
              "device '" + std::string(text) +
                  "' is unknown; expected cpu, cuda, cuda:0 to cuda:63, or mps");
}

std::string Device::name() const {
  switch (kind) {
    case DeviceKind::kCpu: return "cpu";
    case DeviceKind::kCuda: return "cuda:" + std::to_string(index);
    case DeviceKind::kMps: return "mps";
  }
  return "?";
}

namespace {
std::mutex log_mutex;
std::shared_ptr<LogCallback> log_callback;
}  // namespace

void set_log_callback(LogCallback callback) {
  std::lock_guard lock(log_mutex);
  log_callback = callback ? std::make_shared<LogCallback>(std::move(callback)) : nullptr;
}

void log_message(LogLevel level, std::string_view message) {
  std::shared_ptr<LogCallback> callback;
  {
    std::lock_guard lock(log_mutex);
    callback = log_callback;
  }
  if (callback) (*callback)(level, message);
}

}  // namespace vitrine
