// SPDX-License-Identifier: Apache-2.0
// Matrices that stay in the mapped file: the same bits as packed ones, for every type of block, in
// any batch and on any number of threads; a file that is cut under the mapping is an error.
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

EngineOptions mapped_options(int threads = 1) {
  EngineOptions options = test_options(threads);
  options.mmap_weights = true;
  return options;
}

class MappedBlocks : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(MappedBlocks, GiveTheSameBits) {
  const VariantFolder folder(GetParam());
  auto packed = Engine::load(folder.path(), test_options(2));
  EXPECT_EQ(packed->summary().mapped_bytes, 0u);
  const std::vector<int32_t> ids = prompt_ids(75, packed->summary().vocab_size);
  const Rows expected = score(*packed, ids);
  for (const int threads : {1, 3}) {
    auto mapped = Engine::load(folder.path(), mapped_options(threads));
    EXPECT_EQ(mapped->summary().num_parameters, packed->summary().num_parameters);
    EXPECT_TRUE(mapped->summary().invariant);
    EXPECT_GT(mapped->summary().mapped_bytes, mapped->summary().weight_bytes);
    for (const int chunk : {1, 7, 64}) {
      EXPECT_TRUE(same_bits(expected, score(*mapped, ids, chunk), ids.size()))
          << threads << " threads, chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MappedBlocks, ::testing::ValuesIn(block_variants()), variant_name);

TEST(Mapped, EveryArchitectureOfFloats) {
  for (const std::string& name : oracle_names()) {
    const std::string path = oracle_folder(name);
    auto packed = Engine::load(path, test_options());
    const std::vector<int32_t> ids = prompt_ids(40, packed->summary().vocab_size);
    auto mapped = Engine::load(path, mapped_options(2));
    // Experts of a gpt_oss folder in floats stand transposed, so they are read.
    if (name != "gpt_oss") {
      EXPECT_LT(mapped->summary().weight_bytes, packed->summary().weight_bytes / 4) << name;
    }
    EXPECT_NEAR(
        static_cast<double>(mapped->summary().weight_bytes + mapped->summary().mapped_bytes),
        static_cast<double>(packed->summary().weight_bytes), 64 * 1024)
        << name;
    EXPECT_TRUE(same_bits(score(*packed, ids), score(*mapped, ids, 9), ids.size())) << name;
  }
}

/// The ways to quantize a folder whose rows stand in it as kernels read them, without texts.
std::vector<QuantMethod> methods_in_place() {
  std::vector<QuantMethod> methods = quant_methods();
  std::erase_if(methods, [](const QuantMethod& method) {
    const bool is_in_place =
        method.layout == "pack-quantized" || method.layout == "float-quantized";
    return !is_in_place || method.activations == ActivationUse::kStatic;
  });
  return methods;
}

/// Each of them, with groups that do and don't divide the columns.
std::vector<ModelVariant> quantized_variants() {
  std::vector<ModelVariant> all = {{"shipped", "", 32}};
  for (const QuantMethod& method : methods_in_place()) {
    all.push_back({"qwen3_moe", method.name, 32});
    all.push_back({"granitemoe", method.name, 64});
    all.push_back({"llama", method.name, 64});
  }
  return all;
}

class MappedFolder : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(MappedFolder, GivesTheSameBits) {
  const VariantFolder folder(GetParam());
  auto packed = Engine::load(folder.path(), test_options(2));
  const std::vector<int32_t> ids = prompt_ids(75, packed->summary().vocab_size);
  const Rows expected = score(*packed, ids);
  for (const int threads : {1, 3}) {
    auto mapped = Engine::load(folder.path(), mapped_options(threads));
    EXPECT_EQ(mapped->summary().num_parameters, packed->summary().num_parameters);
    EXPECT_LT(mapped->summary().weight_bytes, packed->summary().weight_bytes / 3);
    EXPECT_GT(mapped->summary().mapped_bytes, packed->summary().weight_bytes / 2);
    for (const int chunk : {1, 7, 64}) {
      EXPECT_TRUE(same_bits(expected, score(*mapped, ids, chunk), ids.size()))
          << threads << " threads, chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MappedFolder, ::testing::ValuesIn(quantized_variants()),
                         variant_name);

/// The folder again, with `shift` bytes more in front of its tensors.
void shift_tensors(const std::string& folder, size_t shift) {
  const std::string path = folder + "/model.safetensors";
  std::string bytes = read_bytes(path);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  bytes.insert(static_cast<size_t>(header) + 8, std::string(shift, ' '));
  header += shift;
  std::memcpy(bytes.data(), &header, sizeof(header));
  write_bytes(path, bytes);
}

// Files in which nothing is aligned.
TEST(Mapped, UnalignedFolders) {
  for (const QuantMethod& method : methods_in_place()) {
    const VariantFolder folder({"qwen3_moe", method.name, 32});
    auto packed = Engine::load(folder.path(), test_options());
    const std::vector<int32_t> ids = prompt_ids(40, packed->summary().vocab_size);
    const Rows expected = score(*packed, ids);
    for (const size_t shift : {1, 2}) {
      shift_tensors(folder.path(), shift);
      auto mapped = Engine::load(folder.path(), mapped_options(2));
      EXPECT_GT(mapped->summary().mapped_bytes, packed->summary().weight_bytes / 4);
      EXPECT_TRUE(same_bits(expected, score(*mapped, ids, 9), ids.size())) << method.name;
    }
  }
}

/// A folder whose tensors are those of another one, but for some.
void take_tensors(const std::string& from, const std::string& folder, const std::string& part) {
  const Checkpoint own = Checkpoint::open(folder), other = Checkpoint::open(from);
  std::map<std::string, std::pair<const Checkpoint*, const TensorInfo*>> all;
  for (const TensorInfo& info : own.tensors()) {
    if (info.name.find(part) == std::string::npos) all[info.name] = {&own, &info};
  }
  for (const TensorInfo& info : other.tensors()) {
    if (info.name.find(part) != std::string::npos) all[info.name] = {&other, &info};
  }
  SafetensorsWriter writer(folder + "/model.safetensors");
  for (const auto& [name, source] : all) {
    writer.declare(name, source.second->dtype, source.second->shape);
  }
  writer.begin();
  for (const auto& [name, source] : all) {
    std::vector<std::byte> bytes(source.second->num_bytes);
    source.first->read(*source.second, bytes);
    writer.write(name, bytes);
  }
  writer.finish();
}

// A gate of one kind beside an up of another: floats of any two widths go together, and integers
// beside floats run as floats.
TEST(Mapped, GateAndUpOfTwoKinds) {
  for (const char* model : {"qwen3_moe", "llama"}) {
    for (const char* scheme : {"fp8", "int4"}) {
      const VariantFolder folder({model, scheme, 32});
      take_tensors(oracle_folder(model), folder.path(), ".gate_proj.");
      for (const bool is_mapped : {false, true}) {
        const EngineOptions options = is_mapped ? mapped_options(2) : test_options(2);
        auto engine = Engine::load(folder.path(), options);
        const std::vector<int32_t> ids = prompt_ids(40, engine->summary().vocab_size);
        auto other = Engine::load(folder.path(), test_options(1));
        EXPECT_TRUE(same_bits(score(*other, ids), score(*engine, ids, 9), ids.size())) << model;
      }
    }
  }
}

// What is no number in a folder: loading finds it, and where nothing is read the step.
TEST(Mapped, ANumberThatIsNoneIsFoundByTheStep) {
  const std::string module = "model.layers.1.self_attn.o_proj";
  for (const auto& [scheme, tensor, bytes] :
       {std::tuple{"int4", ".weight_scale", std::string("\x80\x7f")},
        std::tuple{"fp8", ".weight", std::string("\x7f")}}) {
    const VariantFolder folder({"qwen3_moe", scheme, 32});
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    const TensorInfo& info = checkpoint.require(module + tensor);
    if (scheme == std::string("int4")) {
      ASSERT_EQ(info.dtype, DType::kBF16);
    }
    overwrite(folder.path(), info, info.num_bytes - bytes.size(), bytes);
    for (const bool is_mapped : {false, true}) {
      const Error error = error_of([&] {
        auto engine = Engine::load(folder.path(), is_mapped ? mapped_options(2) : test_options(2));
        score(*engine, prompt_ids(60, engine->summary().vocab_size));
      });
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << scheme;
      EXPECT_TRUE(is_one_line_with(error, {folder.path(), module + tensor, "expected"}))
          << error.what();
    }
  }
}

TEST(Mapped, RefusesWhatCannotStand) {
  EngineOptions options = mapped_options();
  options.kernels = KernelPath::kReference;
  const Error reference = error_of([&] { Engine::load(oracle_folder("qwen3"), options); });
  EXPECT_TRUE(is_one_line_with(reference, {"mmap_weights", "fused"})) << reference.what();

  options = mapped_options();
  options.expert_cache_bytes = uint64_t{1} << 30;
  const Error both = error_of([&] { Engine::load(oracle_folder("qwen3_moe"), options); });
  EXPECT_EQ(both.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(both, {"mmap_weights", "expert_cache_bytes"})) << both.what();
}

TEST(Mapped, AScaleThatIsNotFiniteIsFoundByTheStep) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.gguf";
  std::string bytes = BlockModel("Q8_0").bytes();
  // The last block of the last matrix, of the third expert's down projection.
  bytes[bytes.size() - 34] = '\0';
  bytes[bytes.size() - 33] = '\x7c';
  write_bytes(path, bytes);
  auto engine = Engine::load(path, mapped_options(2));
  const std::vector<int32_t> ids = prompt_ids(60, engine->summary().vocab_size);
  const Error error = error_of([&] { score(*engine, ids); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {path, "experts.2.down_proj", "infinite"})) << error.what();
}

TEST(Mapped, ACutFileIsAnErrorBeforeTheNextStep) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.gguf";
  const std::string bytes = BlockModel("Q4_0").bytes();
  write_bytes(path, bytes);
  auto engine = Engine::load(path, mapped_options());
  const std::vector<int32_t> ids = prompt_ids(8, engine->summary().vocab_size);
  std::filesystem::resize_file(path, bytes.size() - 1);
  const Error error = error_of([&] { score(*engine, ids); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_TRUE(is_one_line_with(error, {path, std::to_string(bytes.size() - 1)})) << error.what();
}

// The file keeps its size: a step would answer with the new weights, and the log name the ones
// before.
TEST(Mapped, AFileThatIsWrittenToFailsTheNextStep) {
  const TemporaryFolder folder;
  const std::string path = folder / "file.gguf";
  const std::string bytes = BlockModel("Q4_0").bytes();
  const EngineOptions mapped = mapped_options(), loaded = test_options();
  EngineOptions cached = loaded;
  cached.expert_cache_bytes = uint64_t{1} << 30;
  for (const EngineOptions& options : {mapped, cached, loaded}) {
    write_bytes(path, bytes);
    const auto engine = Engine::load(path, options);
    const std::vector<int32_t> ids = prompt_ids(8, engine->summary().vocab_size);
    const auto before = score(*engine, ids);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // file systems tick
    write_bytes(path, bytes);
    if (!options.mmap_weights && options.expert_cache_bytes == 0) {
      EXPECT_EQ(score(*engine, ids), before) << "all was read";
      continue;
    }
    const Error error = error_of([&] { score(*engine, ids); });
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_TRUE(is_one_line_with(error, {path, "written to", "load the model again"}))
        << error.what();
  }
}

// What the step's own check cannot see: the file is whole again when it looks.
TEST(Mapped, AGuardTurnsAFaultIntoAnError) {
  const TemporaryFolder folder;
  const std::string path = folder / "file.gguf";
  const std::string bytes = BlockModel("Q4_0").bytes();
  write_bytes(path, bytes);
  const Checkpoint checkpoint = Checkpoint::open(path);
  const TensorInfo& last = checkpoint.require("model.layers.0.mlp.experts.2.down_proj.weight");
  const std::span<const std::byte> mapped = checkpoint.map(last);
  ASSERT_FALSE(mapped.empty());
  {
    const MappedFileGuard guard;
    const MappedFileGuard another;
    std::filesystem::resize_file(path, 100);
    EXPECT_EQ(static_cast<int>(*static_cast<const volatile std::byte*>(mapped.data())), 0);
    write_bytes(path, bytes);
  }
  const Error error = error_of([&] { checkpoint.check_unchanged(); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_TRUE(is_one_line_with(error, {path, "cut"})) << error.what();
}

TEST(MappedDeathTest, WithoutAGuardTheSignalEndsTheProcess) {
  const TemporaryFolder folder;
  const std::string path = folder / "file.gguf";
  write_bytes(path, BlockModel("Q4_0").bytes());
  const Checkpoint checkpoint = Checkpoint::open(path);
  const std::span<const std::byte> mapped =
      checkpoint.map(checkpoint.require("model.layers.0.mlp.experts.2.down_proj.weight"));
  { const MappedFileGuard gone; }
  EXPECT_EXIT(
      {
        std::filesystem::resize_file(path, 100);
        static_cast<void>(*static_cast<const volatile std::byte*>(mapped.data()));
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace vitrine::testing
