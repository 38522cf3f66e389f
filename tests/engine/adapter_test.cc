// SPDX-License-Identifier: Apache-2.0
// Adapters applied beside the weights: what they add, and the promise of bits.
#include "checkpoint/model_config.h"
#include "tests/engine/adapter_fixture.h"

namespace vitrine::testing {
namespace {

constexpr int64_t kRank = 5;  // a multiple of nothing
constexpr double kAlpha = 8;

class AdapterTest : public ::testing::TestWithParam<ModelVariant> {
 protected:
  AdapterTest() : model_(GetParam()) {
    const Checkpoint checkpoint = Checkpoint::open(model_.path());
    config_ = parse_model_config(checkpoint);
    const std::vector<AdapterModule> attention = attention_modules(config_);
    const std::vector<AdapterModule> blocks = block_modules(config_);
    write_adapter(folder_ / "one", adapter_config(kRank, kAlpha),
                  adapter_tensors(all_modules(config_), kRank, 1));
    write_adapter(folder_ / "two", adapter_config(kRank, kAlpha, R"(, "use_rslora": true)"),
                  adapter_tensors(attention, kRank, 2));
    // Another rank, and only some modules: of experts too.
    std::vector<AdapterModule> some = {attention[1], attention[3], blocks.front()};
    if (blocks.size() > 1) some.push_back(blocks.back());
    for (size_t i = 2; i + 1 < blocks.size(); i += 5) some.push_back(blocks[i]);
    write_adapter(folder_ / "three", adapter_config(18, 4), adapter_tensors(some, 18, 3));
    prompt_ = prompt_ids(70, static_cast<int>(config_.vocab_size));
  }

  EngineOptions options(int threads = 1) const {
    EngineOptions options = test_options(threads);
    options.adapters = {folder_ / "one", folder_ / "two", folder_ / "three"};
    return options;
  }
  Rows score_with(Engine& engine, int adapter, size_t chunk = 0) const {
    Rows rows;
    const SequenceId sequence = engine.create_sequence(adapter);
    feed(engine, sequence, prompt_, 0, prompt_.size(), chunk, rows);
    engine.release(sequence);
    return rows;
  }

  VariantFolder model_;
  TemporaryFolder folder_;
  ModelConfig config_;
  std::vector<int32_t> prompt_;
};

float largest_difference(const Rows& a, const Rows& b) {
  float largest = 0;
  for (const auto& [position, row] : a) {
    const std::vector<float>& other = b.at(position);
    for (size_t i = 0; i < row.size(); ++i) {
      largest = std::max(largest, std::abs(row[i] - other[i]));
    }
  }
  return largest;
}

TEST_P(AdapterTest, NoAdapterIsTheBaseToTheBit) {
  const auto base = Engine::load(model_.path(), test_options());
  const auto engine = Engine::load(model_.path(), options());
  EXPECT_TRUE(same_bits(score(*base, prompt_), score_with(*engine, -1), prompt_.size()));
  EXPECT_GT(largest_difference(score(*base, prompt_), score_with(*engine, 0)), 1e-3F);
}

TEST_P(AdapterTest, AloneInABatchOrInChunksGivesTheSameBits) {
  const auto engine = Engine::load(model_.path(), options(1));
  const auto two_threads = Engine::load(model_.path(), options(2));
  std::vector<Rows> alone;
  for (const int adapter : {-1, 0, 1, 2}) alone.push_back(score_with(*engine, adapter));
  for (const int adapter : {-1, 0, 1, 2}) {
    const Rows& expected = alone[static_cast<size_t>(adapter + 1)];
    for (const size_t chunk : {1, 7, 64}) {
      EXPECT_TRUE(same_bits(expected, score_with(*engine, adapter, chunk), prompt_.size()))
          << "adapter " << adapter << " in chunks of " << chunk;
    }
    EXPECT_TRUE(same_bits(expected, score_with(*two_threads, adapter), prompt_.size()));
  }
  // All of them in one step, the same adapter twice, at different positions.
  const std::vector<int> adapters = {0, -1, 2, 0, 1};
  std::vector<SequenceId> sequences;
  for (const int adapter : adapters) sequences.push_back(two_threads->create_sequence(adapter));
  std::vector<Rows> rows(adapters.size());
  std::vector<size_t> fed(adapters.size(), 0);
  for (size_t round = 0; round < 200; ++round) {
    std::vector<StepInput> inputs;
    std::vector<size_t> of;
    for (size_t i = 0; i < adapters.size(); ++i) {
      const size_t count = std::min((round + i) % 4 * 3, prompt_.size() - fed[i]);
      if (count == 0) continue;
      StepInput input;
      input.sequence = sequences[i];
      input.tokens = std::span<const int32_t>(prompt_).subspan(fed[i], count);
      input.rows = StepInput::Rows::kAll;
      inputs.push_back(input);
      of.push_back(i);
      fed[i] += count;
    }
    if (inputs.empty()) continue;
    const auto outputs = two_threads->step(inputs);
    for (const size_t i : of) keep_rows(outputs, sequences[i], rows[i]);
  }
  for (size_t i = 0; i < adapters.size(); ++i) {
    ASSERT_EQ(fed[i], prompt_.size());
    EXPECT_TRUE(same_bits(alone[static_cast<size_t>(adapters[i] + 1)], rows[i], prompt_.size()))
        << "sequence " << i;
  }
}

TEST_P(AdapterTest, AForkKeepsItsAdapter) {
  const auto engine = Engine::load(model_.path(), options());
  const Rows expected = score_with(*engine, 1);
  Rows rows;
  const SequenceId first = engine->create_sequence(1);
  feed(*engine, first, prompt_, 0, 33, 0, rows);
  const SequenceId second = engine->fork(first);
  feed(*engine, second, prompt_, 33, prompt_.size(), 0, rows);
  EXPECT_TRUE(same_bits(expected, rows, prompt_.size()));
}

TEST_P(AdapterTest, ASumIsForEverySequenceThatNamesNone) {
  EngineOptions of_sum = options();
  of_sum.lora = {{folder_ / "two", 0.5F}, {folder_ / "three", -1.25F}};
  const auto engine = Engine::load(model_.path(), of_sum);
  const auto plain = Engine::load(model_.path(), options());
  // Those that can be named are as they were.
  EXPECT_TRUE(same_bits(score_with(*plain, 2), score_with(*engine, 2), prompt_.size()));
  const Rows expected = score_with(*engine, -1);
  EXPECT_GT(largest_difference(expected, score_with(*plain, -1)), 1e-3F);
  of_sum.threads = 2;
  const auto two_threads = Engine::load(model_.path(), of_sum);
  for (const size_t chunk : {1, 7, 0}) {
    EXPECT_TRUE(same_bits(expected, score_with(*two_threads, -1, chunk), prompt_.size()));
  }
  // One part at its own scale is that adapter, and at none the base.
  of_sum.lora = {{folder_ / "three" + "/adapter_model.safetensors", 1.0F}};
  EXPECT_TRUE(same_bits(score_with(*plain, 2), score_with(*Engine::load(model_.path(), of_sum), -1),
                        prompt_.size()));
  of_sum.lora = {{folder_ / "three", 0.0F}};
  EXPECT_EQ(largest_difference(score_with(*plain, -1),
                               score_with(*Engine::load(model_.path(), of_sum), -1)),
            0);
  // A prefix of such a sequence, and what is attached to it.
  Rows rows;
  const SequenceId first = engine->create_sequence();
  feed(*engine, first, prompt_, 0, 33, 0, rows);
  const PrefixId prefix = engine->retain(first, 33);
  EXPECT_EQ(engine->prefix(prefix).adapter, -1);
  feed(*engine, engine->attach(prefix), prompt_, 33, prompt_.size(), 0, rows);
  EXPECT_TRUE(same_bits(expected, rows, prompt_.size()));
}

TEST_P(AdapterTest, TheReferencePathAgrees) {
  EngineOptions of_fused = options();
  of_fused.kv_codecs = {"f32"};  // as in Paths
  EngineOptions reference = of_fused;
  reference.kernels = KernelPath::kReference;
  const auto fused = Engine::load(model_.path(), of_fused);
  const auto plain = Engine::load(model_.path(), reference);
  // Where activations are quantized, another last bit before may round to another step.
  const float tolerance = GetParam().scheme.empty() ? 2e-3F : 5e-2F;
  for (const int adapter : {0, 1, 2}) {
    EXPECT_LT(largest_difference(score_with(*fused, adapter), score_with(*plain, adapter)),
              tolerance)
        << adapter;
  }
  // Two adapters and none in one step.
  std::vector<StepInput> inputs;
  std::vector<SequenceId> sequences;
  for (const int adapter : {1, -1, 0}) {
    sequences.push_back(plain->create_sequence(adapter));
    StepInput input;
    input.sequence = sequences.back();
    input.tokens = prompt_;
    input.rows = StepInput::Rows::kAll;
    inputs.push_back(input);
  }
  const auto outputs = plain->step(inputs);
  for (size_t i = 0; i < 3; ++i) {
    Rows rows;
    keep_rows(outputs, sequences[i], rows);
    EXPECT_LT(largest_difference(score_with(*plain, i == 0 ? 1 : i == 1 ? -1 : 0), rows), 1e-3F);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, AdapterTest,
    ::testing::Values(ModelVariant{"qwen3_moe", "", 32}, ModelVariant{"qwen2_moe", "", 32},
                      ModelVariant{"qwen2_moe", "int8", 64}, ModelVariant{"granitemoe", "", 32},
                      ModelVariant{"llama", "", 32}, ModelVariant{"llama", "int4", 64},
                      ModelVariant{"blocks", "Q4_K", 32}, ModelVariant{"olmoe", "int4", 32},
                      ModelVariant{"mixtral", "int8", 32}),
    variant_name);

// W + scale * B A, in double, written as a checkpoint of its own.
TEST(MergedAdapter, TheUnmergedOneEqualsIt) {
  for (const std::string name : {"qwen3_moe", "llama", "granitemoe", "qwen2_moe", "mixtral"}) {
    const Checkpoint checkpoint = Checkpoint::open(oracle_folder(name));
    const ModelConfig config = parse_model_config(checkpoint);
    const TemporaryFolder folder;
    const auto tensors = adapter_tensors(all_modules(config), kRank, 4);
    write_adapter(folder / "adapter", adapter_config(kRank, kAlpha), tensors);
    std::map<std::string, const AdapterTensor*> by_name;
    for (const AdapterTensor& tensor : tensors) by_name[tensor.name] = &tensor;

    std::filesystem::create_directories(folder / "merged");
    write_text(folder / "merged/config.json", checkpoint.config_json());
    SafetensorsWriter writer(folder / "merged/model.safetensors");
    for (const TensorInfo& info : checkpoint.tensors()) {
      writer.declare(info.name, DType::kF32, info.shape);
    }
    writer.begin();
    size_t merged = 0;
    for (const TensorInfo& info : checkpoint.tensors()) {
      std::vector<float> weight = checkpoint.read_f32(info);
      const std::string module = info.name.substr(0, info.name.rfind('.'));
      const auto found = by_name.find("base_model.model." + module + ".lora_A.weight");
      if (found != by_name.end() && info.name.ends_with(".weight")) {
        ++merged;
        const std::vector<float>& a = found->second->values;
        const std::vector<float>& b =
            by_name.at("base_model.model." + module + ".lora_B.weight")->values;
        const int64_t cols = info.shape[1];
        for (int64_t row = 0; row < info.shape[0]; ++row) {
          for (int64_t col = 0; col < cols; ++col) {
            double sum = 0;
            for (int64_t r = 0; r < kRank; ++r) {
              sum += double{b[static_cast<size_t>(row * kRank + r)]} *
                     double{a[static_cast<size_t>(r * cols + col)]};
            }
            float& to = weight[static_cast<size_t>(row * cols + col)];
            to = static_cast<float>(double{to} + kAlpha / kRank * sum);
          }
        }
      }
      writer.write(info.name, std::as_bytes(std::span(weight)));
    }
    writer.finish();
    EXPECT_EQ(merged, tensors.size() / 2);

    EngineOptions options = test_options();
    const std::vector<int32_t> prompt = prompt_ids(60, static_cast<int>(config.vocab_size));
    const auto whole = Engine::load(folder / "merged", options);
    options.adapters = {folder / "adapter"};
    const auto unmerged = Engine::load(oracle_folder(name), options);
    Rows rows;
    const SequenceId sequence = unmerged->create_sequence(0);
    feed(*unmerged, sequence, prompt, 0, prompt.size(), 0, rows);
    EXPECT_LT(largest_difference(score(*whole, prompt), rows), 2e-4F) << name;
  }
}

class AdapterErrors : public ::testing::Test {
 protected:
  AdapterErrors()
      : config_(parse_model_config(Checkpoint::open(oracle_folder("qwen3_moe")))),
        modules_(attention_modules(config_)) {}

  std::string refusal(const std::string& config, const std::vector<AdapterTensor>& tensors) {
    write_adapter(folder_ / "bad", config, tensors);
    return refusal();
  }
  std::string refusal() {
    EngineOptions options = test_options();
    options.adapters = {folder_ / "bad"};
    try {
      Engine::load(oracle_folder("qwen3_moe"), options);
    } catch (const Error& error) {
      EXPECT_TRUE(error.is_user_error()) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "loaded";
  }
  void expect(const std::string& part, const std::string& found) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
    EXPECT_NE(found.find("expected"), std::string::npos) << found;
  }

  TemporaryFolder folder_;
  ModelConfig config_;
  std::vector<AdapterModule> modules_;
};

TEST_F(AdapterErrors, EachSaysWhatIsWrong) {
  const auto good = adapter_tensors(modules_, 4, 1);
  expect("[4, ", refusal(adapter_config(8, 8), good));  // of another rank
  auto tensors = good;
  tensors[0].name = "base_model.model.model.layers.0.mlp.experts.999.gate_proj.lora_A.weight";
  expect("mlp.experts.999.gate_proj", refusal(adapter_config(4, 8), tensors));
  tensors[0].name = "base_model.model.model.layers.0.mlp.experts.0.down_proj.lora_A.weight";
  tensors[0].shape = {4, 1};
  tensors[0].values.resize(4);
  expect("mlp.experts.0.down_proj", refusal(adapter_config(4, 8), tensors));
  tensors = good;
  tensors[0].name = "base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight";
  expect("layers.99", refusal(adapter_config(4, 8), tensors));
  tensors = good;
  tensors[0].name = "base_model.model.lm_head.lora_magnitude_vector";
  expect("no half", refusal(adapter_config(4, 8), tensors));
  tensors = good;
  tensors.erase(tensors.begin());
  expect("lora_A", refusal(adapter_config(4, 8), tensors));
  expect("holds no tensor", refusal(adapter_config(4, 8), {}));
  expect("peft_type", refusal(R"({"peft_type": "IA3", "r": 4, "lora_alpha": 4})", good));
  expect("'r'", refusal(R"({"peft_type": "LORA", "lora_alpha": 4})", good));
  expect("'r'", refusal(adapter_config(0, 8), good));
  expect("lora_alpha", refusal(R"({"peft_type": "LORA", "r": 4})", good));
  expect("use_dora", refusal(adapter_config(4, 8, R"(, "use_dora": true)"), good));
  expect("rank_pattern", refusal(adapter_config(4, 8, R"(, "rank_pattern": {"q": 1})"), good));
  expect("adapter_config.json", refusal("[]", good));
  // What the configuration says that the tensors are of.
  const auto targets = [](const std::string& value) {
    std::string config = adapter_config(4, 8);
    const std::string given = "\"all-linear\"";
    return config.replace(config.find(given), given.size(), value);
  };
  const std::string module = modules_[0].module, last = module.substr(module.rfind('.') + 1);
  std::string all = "[";
  for (const AdapterModule& one : modules_) {
    all += (all.size() > 1 ? ", \"" : "\"") + one.module.substr(one.module.rfind('.') + 1) + "\"";
  }
  all += "]";
  for (const std::string& value : {all, std::string(R"("all-linear")"), std::string("null")}) {
    EXPECT_EQ(refusal(targets(value), good), "loaded") << value;
  }
  expect("does not target", refusal(targets(R"(["embed_tokens"])"), good));
  expect("does not target", refusal(targets("[\"" + last.substr(1) + "\"]"), good));
  expect("'target_modules'", refusal(targets("[7]"), good));
  // A text is an expression that a whole name matches, as Python's re.fullmatch.
  std::string any = "(";
  for (const AdapterModule& one : modules_) any += (any.size() > 1 ? "|" : "") + one.module;
  any += ")";
  for (const std::string& value :
       {"\"" + any + "\"", std::string(R"("model\\.layers\\.\\d+\\..*")"), std::string("\".*\"")}) {
    EXPECT_EQ(refusal(targets(value), good), "loaded") << value;
  }
  for (const std::string& value :
       {std::string("[]"), std::string(R"("")"), std::string(R"(".*lm_head")"),
        "\".*" + last.substr(0, last.size() - 1) + "\"", "\"" + last + "\"",
        std::string(R"("x|.*\n")")}) {
    expect("does not target", refusal(targets(value), good));
  }
  expect("can't be compiled", refusal(targets(R"("(")"), good));
  expect("can't be compiled", refusal(targets(R"(".*)|(")"), good));
  expect("exclude_modules",
         refusal(targets(all + R"(, "exclude_modules": ".*)" + last + "\""), good));
  expect("exclude_modules",
         refusal(targets(all + R"(, "exclude_modules": [")" + last + "\"]"), good));
}

// Truncated at any length, or with a header that lies: a refusal, never a crash.
TEST_F(AdapterErrors, AHostileFileIsRefused) {
  write_adapter(folder_ / "bad", adapter_config(4, 8), adapter_tensors(modules_, 4, 1));
  const std::string path = folder_ / "bad/adapter_model.safetensors";
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  ASSERT_EQ(refusal(), "loaded");
  for (const size_t length :
       {size_t{0}, size_t{7}, size_t{8}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    write_text(path, whole.substr(0, length));
    EXPECT_NE(refusal(), "loaded") << length;
  }
  for (size_t at = 8; at < 600; at += 3) {
    std::string changed = whole;
    changed[at] = changed[at] == '9' ? '0' : '9';
    write_text(path, changed);
    refusal();  // an error of the user's, or a name that no one reads
  }
  std::string huge = whole;
  huge.replace(0, 8, 8, '\xff');
  write_text(path, huge);
  EXPECT_NE(refusal(), "loaded");
}

TEST_F(AdapterErrors, OfASum) {
  write_adapter(folder_ / "good", adapter_config(4, 8), adapter_tensors(modules_, 4, 1));
  const auto refused = [&](const std::string& path, float scale) -> std::string {
    EngineOptions options = test_options();
    options.lora = {{folder_ / "good", 1.0F}, {path, scale}};
    try {
      Engine::load(oracle_folder("qwen3_moe"), options);
    } catch (const Error& error) {
      EXPECT_TRUE(error.is_user_error()) << error.what();
      return error.what();
    }
    return "loaded";
  };
  EXPECT_EQ(refused(folder_ / "good", -2), "loaded");
  expect("scale", refused(folder_ / "good", NAN));
  expect("scale", refused(folder_ / "good", 1e9F));
  expect("GGUF", refused(folder_ / "lora.gguf", 1));
  expect("empty", refused("", 1));
}

TEST_F(AdapterErrors, AnAdapterThatIsNotThere) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), test_options());
  EXPECT_THROW(engine->create_sequence(0), Error);
  EXPECT_THROW(engine->create_sequence(-2), Error);
  const uint64_t sequence = engine->create_sequence();
  engine->release(sequence);
}

}  // namespace
}  // namespace vitrine::testing
