// SPDX-License-Identifier: Apache-2.0
// Continues a text with keys and values in float32, then as the codec beside this file keeps them.
#include <vitrine/model.h>
#include <cstdio>
#include <memory>

#include "hadamard_int8.h"

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: kv_codec MODEL PROMPT\n"), 2;
  vitrine::register_kv_codec(std::make_shared<HadamardInt8>());
  for (const char* codec : {"f32", "hadamard_i8"}) {
    vitrine::ModelOptions how;
    how.engine.kv_codecs = {codec};
    vitrine::Model model = vitrine::Model::open(argv[1], how);
    vitrine::GenerateOptions options;
    options.max_new_tokens = 100;  // over the border of a block
    options.sampler.temperature = 0.0f;
    const vitrine::GenerateResult result =
        vitrine::generate(model, model.tokenizer().encode(argv[2]), options);
    std::printf("%s, %.1f MB of keys and values: %s\n", codec,
                static_cast<double>(model.summary().kv_bytes) / 1e6,
                model.tokenizer().decode(result.tokens).c_str());
  }
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "kv_codec: %s\n", error.what()), error.is_user_error() ? 2 : 1;
}
