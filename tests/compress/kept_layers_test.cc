// SPDX-License-Identifier: Apache-2.0
// Calibrations that end before their time: the same call goes on behind the last whole layer, and
// gives the same bytes; what belongs to another call, or is damaged, is not taken.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tests/compress/model_divergence.h"

namespace vitrine::testing {
namespace {

QuantizeOptions kept_options(const std::string& source, const char* scheme, const char* method) {
  QuantizeOptions options = calibrated_options(source, scheme, method, 4, 24, 500);
  options.keep_layers = true;
  return options;
}

std::set<std::string> files_of(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// Returns the digests of a result's files by name.
std::vector<std::string> digests_of(const std::string& folder) {
  std::vector<std::string> digests;
  for (const std::string& name : files_of(folder)) {
    digests.push_back(name + " " + sha256_of_file(folder + "/" + name));
  }
  return digests;
}

/// Runs until a layer is under way: `matrices` are told of it.
void cancel_in_layer(const std::string& source, const std::string& out, QuantizeOptions options,
                     int64_t layer, int matrices) {
  options.progress = [layer, matrices, seen = 0](const QuantizeProgress& progress) mutable {
    if (progress.stage != "layers" || progress.done != layer) return;
    if (seen++ == matrices) throw Error(ErrorKind::kCancelled, "stopped");
  };
  const Error error = error_of([&] { quantize_checkpoint(source, out, options); });
  ASSERT_EQ(error.kind(), ErrorKind::kCancelled) << error.what();
  ASSERT_FALSE(std::filesystem::exists(out));
}

/// What a run says and takes.
struct Resumed {
  QuantizeReport report;
  std::vector<std::string> notes;
  bool begins_with(std::string_view words) const {
    return !notes.empty() && notes.front().find(words) != std::string::npos;
  }
};

Resumed run_again(const std::string& source, const std::string& out, QuantizeOptions options) {
  Resumed resumed;
  options.progress = [&resumed](const QuantizeProgress& progress) {
    if (!progress.note.empty()) resumed.notes.emplace_back(progress.note);
  };
  resumed.report = quantize_checkpoint(source, out, options);
  return resumed;
}

void flip_byte(const std::string& path, uint64_t from_end) {
  std::string bytes = read_text_file(path, uint64_t{1} << 30);
  bytes[bytes.size() - from_end] ^= 4;
  write_file_atomically(path, bytes);
}

TEST(KeptLayers, GoOnWithTheSameBytes) {
  struct Way {
    const char* oracle;
    const char* scheme;
    const char* method;
  };
  for (const Way way :
       {Way{"qwen3_moe", "int3-asymmetric", "gptq"}, Way{"llama", "int4", "awq"},
        Way{"qwen2_moe", "int4-asymmetric", "awq"}, Way{"qwen3_moe", "fp8-static", "smoothquant"},
        Way{"qwen3_moe", "mixed:4.5:experts", "gptq"}, Way{"qwen3_next", "int8", "gptq"},
        Way{"llama", "int8-w8a8-static", "rtn"}}) {
    SCOPED_TRACE(std::string(way.oracle) + " " + way.scheme + " " + way.method);
    const TemporaryFolder folder;
    const std::string source = oracle_folder(way.oracle), out = folder / "out";
    QuantizeOptions options = kept_options(source, way.scheme, way.method);
    const Resumed whole = run_again(source, folder / "whole", options);
    EXPECT_EQ(whole.report.layers_taken_up, 0);
    EXPECT_TRUE(whole.notes.empty());
    EXPECT_EQ(files_of(folder / ""), std::set<std::string>{"whole"});
    // Twice, and the second time on another number of threads.
    cancel_in_layer(source, out, options, 0, 2);
    const bool is_mixed = std::string_view(way.scheme).starts_with("mixed");
    EXPECT_EQ(files_of(folder / "").size(), is_mixed ? 2u : 1u);  // widths, but no whole layer
    cancel_in_layer(source, out, options, 1, 2);
    EXPECT_TRUE(std::filesystem::exists(folder / ".out.tmp-layers/layer-0"));
    options.threads = 3;
    cancel_in_layer(source, out, options, 1, 1);
    options.threads = 0;
    const Resumed resumed = run_again(source, out, options);
    EXPECT_EQ(resumed.report.layers_taken_up, 1);
    EXPECT_TRUE(resumed.begins_with(is_mixed ? "goes on with the widths and 1 layers that"
                                             : "goes on with 1 layers that"));
    EXPECT_EQ(digests_of(out), digests_of(folder / "whole"));
    EXPECT_EQ(files_of(folder / ""), (std::set<std::string>{"out", "whole"}));
  }
}

TEST(KeptLayers, MakeADamagedLayerAgain) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  const QuantizeOptions options = kept_options(source, "int4", "awq");
  quantize_checkpoint(source, folder / "whole", options);
  const std::string layer = folder / ".out.tmp-layers/layer-0";
  for (int damage = 0; damage < 6; ++damage) {
    SCOPED_TRACE(damage);
    const std::string out = folder / "out";
    QuantizeOptions stopped = options;
    // All layers are there, and the writing of the rest begins.
    stopped.progress = [](const QuantizeProgress& progress) {
      if (progress.stage == "tensors") throw Error(ErrorKind::kCancelled, "stopped");
    };
    EXPECT_EQ(error_of([&] { quantize_checkpoint(source, out, stopped); }).kind(),
              ErrorKind::kCancelled);
    const uint64_t size = std::filesystem::file_size(layer);
    if (damage == 0) flip_byte(layer, 1);         // the hash
    if (damage == 1) flip_byte(layer, 40);        // the foot
    if (damage == 2) flip_byte(layer, size);      // the magic
    if (damage == 3) flip_byte(layer, size / 2);  // numbers
    if (damage == 4) std::filesystem::resize_file(layer, size / 3);
    if (damage == 5) {  // a whole layer in another one's place
      std::filesystem::copy_file(folder / ".out.tmp-layers/layer-1", layer,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    const Resumed resumed = run_again(source, out, options);
    ASSERT_EQ(resumed.notes.size(), 2u);
    EXPECT_NE(resumed.notes[1].find("layer-0 is damaged; layer 0 is made again"),
              std::string::npos);
    const auto config = read_model_facts(Checkpoint::open(source));
    EXPECT_EQ(resumed.report.layers_taken_up, config.num_layers - 1);  // those behind it stay
    EXPECT_EQ(digests_of(out), digests_of(folder / "whole"));
    std::filesystem::remove_all(out);
  }
}

TEST(KeptLayers, AreNotTakenForAnotherCall) {
  const std::string source = oracle_folder("llama");
  const TemporaryFolder folder;
  const QuantizeOptions options = kept_options(source, "int4", "gptq");
  const auto begins_anew = [&](const std::string& model, const QuantizeOptions& other,
                               std::string_view what) {
    SCOPED_TRACE(what);
    const Resumed resumed = run_again(model, folder / "out", other);
    EXPECT_EQ(resumed.report.layers_taken_up, 0);
    EXPECT_TRUE(resumed.begins_with("keeps 1 layers of a run with another " + std::string(what) +
                                    "; begins anew"))
        << (resumed.notes.empty() ? "no note" : resumed.notes.front());
    EXPECT_EQ(files_of(folder / "").count(".out.tmp-layers"), 0u);
    std::filesystem::remove_all(folder / "out");
  };
  const auto cancel = [&] { cancel_in_layer(source, folder / "out", options, 1, 0); };
  cancel();
  QuantizeOptions other = options;
  other.scheme = "int3";
  begins_anew(source, other, "options");
  cancel();
  other = options;
  other.calibration.back().back() ^= 1;
  begins_anew(source, other, "calibration");
  cancel();
  std::filesystem::copy(source, folder / "in");
  flip_byte(folder / "in/model.safetensors", 2);
  begins_anew(folder / "in", options, "source");
  cancel();
  const std::string fields = folder / ".out.tmp-layers/fields.json";
  std::string text = read_text_file(fields, 1 << 20);
  write_file_atomically(fields, text.replace(text.find("vitrine "), 8, "vitrine-"));
  begins_anew(source, options, "build");
  cancel();
  write_file_atomically(fields, std::string_view("no JSON"));
  begins_anew(source, options, "build");
  // A name that the source has elsewhere is no difference, nor is what must be reached.
  cancel();
  std::filesystem::remove_all(folder / "in");
  std::filesystem::copy(source, folder / "in");
  other = options;
  other.least_reached = 0.01;
  EXPECT_EQ(run_again(folder / "in", folder / "out", other).report.layers_taken_up, 1);
}

TEST(KeptLayers, GoWithTheResultAndWithWhatRefusesIt) {
  const std::string source = oracle_folder("llama");
  const TemporaryFolder folder;
  const QuantizeOptions options = kept_options(source, "int4", "gptq");
  QuantizeOptions refused = options;
  refused.evaluate = [](const std::string&) -> std::optional<QuantizeEvaluation> {
    throw Error(ErrorKind::kInvalidArgument, "a gate says no");
  };
  EXPECT_STREQ(error_of([&] { quantize_checkpoint(source, folder / "out", refused); }).what(),
               "a gate says no");
  EXPECT_TRUE(files_of(folder / "").empty());
  QuantizeOptions unkept = options;
  unkept.keep_layers = false;
  cancel_in_layer(source, folder / "out", unkept, 1, 0);
  EXPECT_TRUE(files_of(folder / "").empty());
  // A run without texts has nothing to take up, and leaves nothing of others.
  cancel_in_layer(source, folder / "out", options, 1, 0);
  QuantizeOptions rounded;
  rounded.keep_layers = true;
  quantize_checkpoint(source, folder / "out", rounded);
  EXPECT_EQ(files_of(folder / ""), std::set<std::string>{"out"});
}

TEST(KeptLayers, AreHeldByOneRun) {
  const std::string source = oracle_folder("llama");
  const TemporaryFolder folder;
  QuantizeOptions options = kept_options(source, "int4", "gptq");
  const QuantizeOptions second = options;
  int tried = 0;
  options.progress = [&](const QuantizeProgress& progress) {
    if (progress.stage != "layers" || tried++ > 0) return;
    const Error error = error_of([&] { quantize_checkpoint(source, folder / "out", second); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {".out.tmp-layers", "another run is making", "expected"}));
  };
  quantize_checkpoint(source, folder / "out", options);
  EXPECT_GT(tried, 0);
  EXPECT_EQ(files_of(folder / ""), std::set<std::string>{"out"});
}

TEST(KeptLayers, ProgressTellsTheTimeLeft) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  QuantizeOptions options = kept_options(source, "mixed:4.5", "gptq");
  std::vector<std::string> stages;
  options.progress = [&](const QuantizeProgress& progress) {
    if (stages.empty() || stages.back() != progress.stage) stages.emplace_back(progress.stage);
    if (progress.stage.empty()) return;
    EXPECT_LT(progress.done, progress.total);
    // Once a part of a stage has ended there is a pace, unless nothing of it was work.
    if (progress.stage != "tensors") {
      EXPECT_EQ(progress.seconds_left >= 0, progress.done > 0);
    }
  };
  quantize_checkpoint(source, folder / "out", options);
  EXPECT_EQ(stages, (std::vector<std::string>{"", "widths", "layers", "tensors"}));
}

}  // namespace
}  // namespace vitrine::testing
