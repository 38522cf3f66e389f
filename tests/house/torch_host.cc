// SPDX-License-Identifier: Apache-2.0
// A host that has tensors: it runs both paths and looks at each one's logits through its own
// libtorch. For each, a line: the kernels, the token that they chose, the largest logit's.
#include <vitrine/engine.h>
#include <vitrine/torch.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: torch_host MODEL\n"), 2;
  for (const vitrine::KernelPath path :
       {vitrine::KernelPath::kFused, vitrine::KernelPath::kReference}) {
    vitrine::EngineOptions options;
    options.max_context = 32;
    options.kernels = path;
    options.keep_logits = true;
    const auto engine = vitrine::Engine::load(argv[1], options);
    const std::vector<int32_t> ids = {3, 1, 4, 1, 5};
    const vitrine::StepInput input{engine->create_sequence(), ids};
    const vitrine::StepOutput output = engine->step({&input, 1})[0];
    vitrine::TensorView view;
    view.data = output.scores.data();
    view.shape = {static_cast<int64_t>(output.scores.size())};
    const auto best = vitrine::to_torch(view).argmax().item<int64_t>();
    std::printf("%s %d %d\n", engine->summary().kernels.c_str(), output.token,
                static_cast<int>(best));
  }
  return 0;
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "torch_host: %s\n", error.what()), 1;
}
