// SPDX-License-Identifier: Apache-2.0
// A host application: load a model, generate with a callback per token, read the audit as structs.
#include <vitrine/engine.h>
#include <cmath>
#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: embed MODEL PROMPT\n"), 2;
  const std::string model = argv[1];
  const auto tokenizer = vitrine::Tokenizer::from_file(model + "/tokenizer.json");
  const std::vector<int32_t> prompt = tokenizer.encode(argv[2]);

  vitrine::SlabRing ring(1 << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  const auto engine = vitrine::Engine::load(model, {});
  engine->set_audit_sink(&ring);

  vitrine::GenerateOptions options;
  options.max_new_tokens = 40;
  options.sampler = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 7};
  vitrine::StreamDecoder decoder(tokenizer);
  vitrine::generate(*engine, prompt, options, [&](const vitrine::TokenEvent& event) {
    std::printf("%s", decoder.add(event.token).c_str());
    return std::fflush(stdout) == 0;  // false cancels
  });
  std::printf("%s\n\n", decoder.finish().c_str());

  for (const vitrine::TokenRecord& record : ring.drain_records()) {
    if (!record.has_prediction) continue;
    std::printf("%-12s p = %.3f  experts", tokenizer.token_text(record.prediction.token).c_str(),
                std::exp(record.prediction.logprob));
    for (const vitrine::LayerRecord& layer : record.layers) {
      if (!layer.routes.empty()) std::printf(" %d", layer.routes.front().expert);
    }
    std::printf("\n");
  }
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "embed: %s\n", error.what()), error.is_user_error() ? 2 : 1;
}
