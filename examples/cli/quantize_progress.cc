// SPDX-License-Identifier: Apache-2.0
#include "quantize_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "closing_note.h"
#include "common.h"

namespace cli {

std::string time_left(double seconds) {
  if (seconds < 0) return "";
  if (seconds < 90) return fmt::format("about {:.0f} s left", std::ceil(seconds));
  const double minutes = std::ceil(seconds / 60);
  if (minutes < 90) return fmt::format("about {:.0f} min left", minutes);
  return fmt::format("about {:.0f} h {:.0f} min left", std::floor(minutes / 60),
                     std::fmod(minutes, 60));
}

QuantizeLine::QuantizeLine(bool keeps)
    : keeps_(keeps), is_terminal_(::isatty(STDERR_FILENO) == 1 && !is_quiet()) {}

void QuantizeLine::show(const vitrine::QuantizeProgress& progress) {
  stop_if_interrupted(keeps_
                          ? "quantize: cancelled before the end; the layers that it finished are "
                            "kept for the same command"
                          : "quantize: cancelled before the end; nothing was written");
  if (!progress.note.empty()) {
    clear();
    write_remark(fmt::format("quantize: {}", progress.note));
    return;
  }
  if (!is_terminal_) return;
  std::string line = "\r\033[K";
  if (progress.total > 0) {
    line += fmt::format("{} {} of {}", progress.stage, progress.done, progress.total);
  }
  const std::string left = time_left(progress.seconds_left);
  if (!left.empty()) line += ", " + left;
  line += fmt::format("  {}", progress.tensor);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void QuantizeLine::clear() const {
  if (is_terminal_) std::fputs("\r\033[K", stderr);
}

}  // namespace cli
