// SPDX-License-Identifier: Apache-2.0
#include "quantize_gguf.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "calibration_texts.h"
#include "closing_note.h"
#include "common.h"
#include "vitrine/gguf_export.h"

namespace cli {

namespace {

std::string joined(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > most) text += fmt::format(" and {} more", names.size() - most);
  return text;
}

std::string describe(const std::string& out, const vitrine::GgufExportReport& report) {
  constexpr size_t kMostNamed = 5;
  std::map<std::string, int> types;
  for (const vitrine::GgufTensorReport& tensor : report.tensors) ++types[tensor.type];
  std::string list;
  for (const auto& [type, count] : types) {
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", count, type);
  }
  std::string text = fmt::format("{}: {} in {} tensors ({})\n", out, format_bytes(report.bytes),
                                 report.tensors.size(), list);
  if (!report.unreached.empty()) {
    text += fmt::format("without importance, since no row reached them: {}\n",
                        joined(report.unreached, kMostNamed));
  }
  if (!report.unused.empty()) {
    text += fmt::format("of no tensor here: {}\n", joined(report.unused, kMostNamed));
  }
  return text;
}

}  // namespace

void GgufArguments::add_to(CLI::App& command) {
  command.add_option("--type", type,
                     "of a .gguf file: f32, f16, bf16; q8_0, q6_k, q5_0, q5_1, q5_k, q4_0, q4_1, "
                     "q4_k, q3_k for all matrices; as llama-quantize mixes them q5_k_m, q5_k_s, "
                     "q4_k_m, q4_k_s, q3_k_l, q3_k_m, q3_k_s, q2_k, iq4_nl, iq4_xs, iq3_m, iq3_s; "
                     "with --imatrix alone iq3_xxs, iq2_m, iq2_s, iq2_xs, iq2_xxs");
  command.add_flag("--pure", pure,
                   "of a .gguf file: every matrix of a mixture becomes what most are");
  command.add_option("--imatrix", importance,
                     "how much each column counts, of a .gguf file: a file of llama-imatrix, or "
                     "one of `vitrine calibrate`, whose texts go through the model first");
}

int GgufArguments::run(const std::string& model, const std::string& out, bool is_lenient) const {
  if (type.empty()) refuse("--type is missing; expected what the file's matrices become");
  require_output_folder("OUT", out);
  catch_interrupts();
  vitrine::ImportanceMatrix matrix;
  vitrine::GgufExportOptions options;
  options.type = type;
  options.pure = pure;
  if (importance.ends_with(".vcal")) {
    const auto texts = read_calibration_texts(importance, open_model(model));
    matrix = vitrine::measure_importance(model, texts, 0, is_lenient);
  } else if (!importance.empty()) {
    matrix = vitrine::read_importance_matrix(importance);
  }
  if (!importance.empty()) options.importance = &matrix;
  const bool terminal = ::isatty(STDERR_FILENO) == 1 && !is_quiet();
  options.progress = [terminal](int64_t done, int64_t total, std::string_view tensor) {
    stop_if_interrupted("quantize: cancelled before the end; nothing was written");
    if (!terminal) return;
    const std::string line = fmt::format("\r\033[K{} of {}  {}", done, total, tensor);
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
  const vitrine::GgufExportReport report = vitrine::export_gguf(model, out, options);
  if (terminal) std::fputs("\r\033[K", stderr);
  write_out(describe(out, report));
  return 0;
}

}  // namespace cli
