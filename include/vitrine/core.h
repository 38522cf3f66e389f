// SPDX-License-Identifier: Apache-2.0
// The room `core`: errors, dtypes, devices, non-owning tensor views, logging, forced routes.
//
// Everything else in Vitrine may include this header; it includes nothing of Vitrine's. The
// interfaces that a host may implement stand beside it: sampler_stage.h, constraint.h, combiner.h,
// audit_sink.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#if __cplusplus < 202002L
#error "Vitrine's headers need C++20: compile with -std=c++20 or later."
#endif

/// Marks what the shared library exports; everything else is hidden.
#define VITRINE_API __attribute__((visibility("default")))

/// All of the library.
namespace vitrine {

/// What went wrong, coarse enough to branch on.
enum class ErrorKind {
  kInvalidArgument,  ///< the caller passed something impossible, or a path where nothing is (a
                     ///< user's mistake)
  kBadFile,          ///< a file's content is not what its format promises (a user's mistake)
  kUnsupported,      ///< valid, but not something this build or device can do (a user's mistake)
  kUnavailable,      ///< a device or library that is not here (a user's mistake)
  kIo,               ///< the operating system refused: disk full, permission, short read
  kOutOfMemory,      ///< an allocation of a stated size failed
  kCancelled,        ///< the host asked to stop
  kInternal,         ///< a bug in Vitrine
};

/// The stable, lower-case name of a kind ("bad file", …).
VITRINE_API std::string_view error_kind_name(ErrorKind kind);

/// The only exception type that leaves the library.
///
/// `what()` is one line without a newline that names the file, the field, what was found and what
/// was expected, and so tells a user what to do next.
class VITRINE_API Error : public std::runtime_error {
 public:
  /// Replaces line breaks of `message`, which stays one line.
  Error(ErrorKind kind, const std::string& message);
  /// Returns what went wrong.
  ErrorKind kind() const noexcept { return kind_; }
  /// Returns true where the caller's input is at fault (the command line tool then exits with 2,
  /// else 1).
  bool is_user_error() const noexcept;

 private:
  ErrorKind kind_;
};

/// Element types of tensors in files and in memory.
enum class DType : uint8_t { kF32, kF16, kBF16, kI8, kU8, kI16, kI32, kI64, kBool, kF64, kF8E4M3 };

/// Bytes of one element.
VITRINE_API size_t dtype_size(DType dtype);
/// The safetensors spelling: "F32", "BF16", "I32", …
VITRINE_API std::string_view dtype_name(DType dtype);

/// Where tensors live and kernels run.
enum class DeviceKind : uint8_t { kCpu, kCuda, kMps };

/// One device.
struct VITRINE_API Device {
  DeviceKind kind = DeviceKind::kCpu;  ///< what it is
  int index = 0;                       ///< among those of its kind

  /// Parses "cpu", "cuda", "cuda:1", "mps". Throws kInvalidArgument.
  static Device parse(std::string_view text);
  /// "cpu", "cuda:0", "mps".
  std::string name() const;
  bool operator==(const Device&) const = default;
};

/// A non-owning view of a dense, row-major tensor (DLPack-compatible: data, shape, dtype, device).
struct TensorView {
  const void* data = nullptr;  ///< not owned
  DType dtype = DType::kF32;   ///< of each element
  std::vector<int64_t> shape;  ///< extents, outermost first
  Device device;               ///< where `data` lies

  /// Returns the product of the extents (1 for a scalar).
  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
  }
  /// Returns the elements' bytes.
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * dtype_size(dtype); }
};

/// How much a message matters.
enum class LogLevel { kDebug, kInfo, kWarning };

/// Receives the library's messages; called from any thread. The library itself prints nothing.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

/// Installs the process-wide log callback (empty: silence, the default). Thread-safe.
VITRINE_API void set_log_callback(LogCallback callback);
/// Sends one line to the callback, if there is one. Thread-safe.
VITRINE_API void log_message(LogLevel level, std::string_view message);

/// One slot of a token's routing in one layer, given in place of what the router chooses.
struct ForcedRoute {
  /// The weight that the router gives this expert among those that are forced with it, normalised
  /// as the architecture does it.
  static constexpr float kRouterWeight = -1;
  int32_t token = 0;   ///< index among the tokens that its sequence brings to the step
  int32_t layer = 0;   ///< of the model
  int32_t expert = 0;  ///< in that layer
  /// The gate weight: kRouterWeight, or a weight to use as it is; 0 takes the expert out.
  float weight = kRouterWeight;
};

}  // namespace vitrine
