# SPDX-License-Identifier: Apache-2.0
"""Our quantized folders against PyPI's compressed-tensors: the same values, scales and zero points,
bit for bit.

    compressed_tensors_test.py QUANTIZE_FOLDER [DATA]

QUANTIZE_FOLDER is the test program of that name, DATA the folder tests/data. Ends with 77 (skipped)
where the oracle packages are not installed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from compressed_tensors.compressors import (
        MXFP4PackedCompressor,
        NaiveQuantizationCompressor,
        NVFP4PackedCompressor,
        PackedQuantizationCompressor,
    )
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import (
        calculate_qparams,
        compute_dynamic_scales_and_zp,
        generate_gparam,
    )
    from compressed_tensors.utils.match import match_name
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 40,
    "hidden_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "moe_intermediate_size": 96,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}
GRANITE_CONFIG = {key: value for key, value in CONFIG.items() if key != "num_experts"} | {
    "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "num_local_experts": 2}
PREFIX = "model.layers.0."
FUSED_FORMS = {
    "granite": (PREFIX + "block_sparse_moe.input_linear.weight",
                PREFIX + "block_sparse_moe.output_linear.weight",
                PREFIX + "block_sparse_moe"),
    "transformers5": (PREFIX + "mlp.experts.gate_up_proj",
                      PREFIX + "mlp.experts.down_proj", PREFIX + "mlp"),
}
checks = 0


def check(condition, message):
    global checks
    checks += 1
    if not condition:
        sys.exit(f"FAILED: {message}")


def same_bits(left, right):
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.flatten().clone().view(torch.uint8),
                       right.flatten().clone().view(torch.uint8))


def hostile_rows(rows, cols, dtype, generator):
    """Random rows, the first of which hold what rounds, underflows or overflows differently."""
    info = torch.finfo(dtype)
    weight = torch.randn(rows, cols, generator=generator, dtype=torch.float64) * 0.05
    weight[0] = 0.0
    weight[1, : cols // 2] = 0.0
    weight[2] *= info.max / 0.5
    weight[2].clamp_(-info.max, info.max)
    weight[3] = weight[3] / 0.05 * info.tiny / 8  # subnormal
    weight[4] = weight[4] / 0.05 * info.smallest_normal * 4  # around the smallest normal
    weight[5] = 0.0
    weight[5, ::32] = info.tiny / 64
    weight[6] = torch.arange(cols, dtype=torch.float64) % 32 / 2 - 7.5  # ties with scale 1
    weight[7] = torch.arange(cols, dtype=torch.float64) % 64 * 4 - 127.5
    weight[8] = -weight[8].abs()
    weight[9] = 0.0
    weight[9, ::32] = -1.0
    weight[10] = -0.0
    weight[11] *= 1e-4
    return weight.to(dtype)


def linear_weights(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    names = {
        "self_attn.q_proj": (128, 256), "self_attn.k_proj": (64, 256),
        "self_attn.v_proj": (64, 256), "self_attn.o_proj": (256, 128),
    }
    for expert in range(2):
        names[f"mlp.experts.{expert}.gate_proj"] = (96, 256)
        names[f"mlp.experts.{expert}.up_proj"] = (96, 256)
        names[f"mlp.experts.{expert}.down_proj"] = (256, 96)
    weights = {PREFIX + name: hostile_rows(*shape, dtype, generator)
               for name, shape in names.items()}
    others = {
        "model.embed_tokens.weight": hostile_rows(40, 256, dtype, generator),
        PREFIX + "mlp.gate.weight": torch.randn(2, 256, generator=generator).to(dtype),
        PREFIX + "input_layernorm.weight": torch.ones(256, dtype=dtype),
        PREFIX + "self_attn.q_proj.bias": torch.ones(128, dtype=dtype),
        "model.norm.weight": torch.ones(256, dtype=dtype),
    }
    return weights, others


def library_answer(weight, bits, group_size, symmetric=True):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(
        num_bits=bits, type="int", symmetric=symmetric, strategy="group", group_size=group_size))
    scale, zero_point = compute_dynamic_scales_and_zp(weight, scheme.weights, module=None)
    compressed = PackedQuantizationCompressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}, scheme)
    restored = fake_quantize(weight, scale, zero_point, scheme.weights)
    return compressed, restored, scheme


def scheme_of(config, module):
    """As compressed-tensors: ignored, else the exact name, else the class Linear."""
    if any(match_name(module, ignored) for ignored in config.ignore):
        return None
    groups = list(config.config_groups.values())
    for group in groups:
        if any(match_name(module, target) for target in group.targets):
            return group
    return next((group for group in groups if "Linear" in group.targets), None)


def run_tool(tool, source, result, scheme, group_size, *more):
    done = subprocess.run([tool, str(source), str(result), scheme, str(group_size), *more],
                          capture_output=True, text=True)
    check(done.returncode == 0, f"quantize_folder: {done.stderr}")


def write_source(folder, tensors, config):
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def compare_folder(result, weights, others, bits, group_size, head, symmetric=True):
    config_json = json.loads((result / "config.json").read_text())
    config = QuantizationConfig.model_validate(config_json["quantization_config"])
    check(config.format == "pack-quantized" and config.quant_method == "compressed-tensors",
          "format")
    manifest = json.loads((result / "vitrine_manifest.json").read_text())
    with safe_open(result / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    expected = set(others)
    modules = dict(weights)
    if head is not None:
        modules["lm_head"] = head
    for module, weight in modules.items():
        module_bits = 8 if module == "lm_head" else bits
        if weight.shape[1] % group_size != 0:
            check(same_bits(tensors[module + ".weight"], weight), f"{module} was changed")
            check("does not divide" in manifest["unquantized"][module + ".weight"], "reason")
            check(scheme_of(config, module) is None, f"{module} is not ignored")
            expected.add(module + ".weight")
            continue
        is_symmetric = symmetric or module == "lm_head"
        answer, restored, scheme = library_answer(weight, module_bits, group_size, is_symmetric)
        parts = ("weight_packed", "weight_scale", "weight_shape")
        parts += () if is_symmetric else ("weight_zero_point",)
        found = scheme_of(config, module)
        check(found is not None and found.weights == scheme.weights, f"scheme of {module}")
        for part in parts:
            name = f"{module}.{part}"
            expected.add(name)
            check(same_bits(tensors[name], answer[part]),
                  f"{name} of {weight.dtype}, {module_bits} bits, groups of {group_size} differs")
        ours = PackedQuantizationCompressor.decompress(
            {part: tensors[f"{module}.{part}"] for part in parts}, found)
        check(same_bits(ours["weight"] + 0.0, restored + 0.0), f"{module} restored")
        error = (weight.double() - answer_in_float(answer, scheme)).abs()
        entry = manifest["quantized"][module]
        check(abs(entry["worst_absolute_error"] - error.max().item()) <= 1e-9 * error.max().item(),
              f"worst error of {module}")
        check(abs(entry["mean_absolute_error"] - error.mean().item()) <= 1e-9 * error.mean().item(),
              f"mean error of {module}")
    for name, tensor in others.items():
        check(same_bits(tensors[name], tensor), f"{name} was changed")
        check(name in manifest["unquantized"], f"{name} not in the manifest")
    check(set(tensors) == expected, f"tensors {sorted(set(tensors) ^ expected)}")
    return config_json


def answer_in_float(answer, scheme):
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    values = unpack_from_int32(answer["weight_packed"], scheme.weights.num_bits,
                               answer["weight_shape"])
    scales = answer["weight_scale"].float().repeat_interleave(scheme.weights.group_size, dim=1)
    if not scheme.weights.symmetric:
        shape = (values.shape[0], values.shape[1] // scheme.weights.group_size)
        zero_points = unpack_from_int32(answer["weight_zero_point"], scheme.weights.num_bits, shape,
                                        packed_dim=0)
        values = values.int() - zero_points.int().repeat_interleave(
            scheme.weights.group_size, dim=1)
    return (values.float() * scales).double()


def test_schemes(tool, work):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for seed, group_size in enumerate((32, 64, 128)):
            weights, others = linear_weights(dtype, seed)
            source = work / f"source-{dtype}-{group_size}"
            stored = {name + ".weight": weight for name, weight in weights.items()} | others
            write_source(source, stored, CONFIG)
            for scheme, bits in (("int4", 4), ("int8", 8)):
                result = work / f"result-{dtype}-{group_size}-{scheme}"
                run_tool(tool, source, result, scheme, group_size)
                config = compare_folder(result, weights, others, bits, group_size,
                                        others["model.embed_tokens.weight"])
                check(config["tie_word_embeddings"] is False, "the head must be untied")
                kept = work / f"kept-{dtype}-{group_size}-{scheme}"
                run_tool(tool, source, kept, scheme, group_size, "keep-head")
                config = compare_folder(kept, weights, others, bits, group_size, None)
                check(config["tie_word_embeddings"] is True, "the head must stay tied")
                check("lm_head" in config["quantization_config"]["ignore"], "head not ignored")


def test_asymmetric(tool, work):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weights, others = linear_weights(dtype, 5)
        for weight in weights.values():
            weight[2] /= 4  # the span of its groups would overflow
        source = work / f"asymmetric-{dtype}"
        stored = {name + ".weight": weight for name, weight in weights.items()} | others
        write_source(source, stored, CONFIG)
        for bits, group_size in ((4, 32), (4, 128), (8, 64)):
            result = work / f"asymmetric-{dtype}-{bits}-{group_size}"
            run_tool(tool, source, result, f"int{bits}-asymmetric", group_size)
            compare_folder(result, weights, others, bits, group_size,
                           others["model.embed_tokens.weight"], symmetric=False)
            manifest = json.loads((result / "vitrine_manifest.json").read_text())
            check(manifest["scheme"]["symmetric"] is False, "the manifest says how it was made")


def float_in_float(answer):
    return answer["weight"].float() * answer["weight_scale"].float()


def float_answer(weight):
    """E4M3 with a scale for each row."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(
        num_bits=8, type="float", symmetric=True, strategy="channel"))
    scale, zero_point = calculate_qparams(weight.amin(dim=1, keepdim=True),
                                          weight.amax(dim=1, keepdim=True), scheme.weights)
    compressed = NaiveQuantizationCompressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}, scheme)
    return compressed, scheme


def test_float8(tool, work):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        weights, others = linear_weights(dtype, 11)
        source = work / f"float8-{dtype}"
        write_source(source, {name + ".weight": weight for name, weight in weights.items()} | others,
                     CONFIG)
        result = work / f"float8-{dtype}-result"
        run_tool(tool, source, result, "fp8", 32)
        config_json = json.loads((result / "config.json").read_text())
        config = QuantizationConfig.model_validate(config_json["quantization_config"])
        check(config.format == "float-quantized", "format of fp8")
        with safe_open(result / "model.safetensors", framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        weights["lm_head"] = others["model.embed_tokens.weight"]
        expected = set(others)
        for module, weight in weights.items():
            answer, scheme = float_answer(weight)
            check(scheme_of(config, module).weights == scheme.weights, f"fp8 scheme of {module}")
            for part in ("weight", "weight_scale"):
                expected.add(f"{module}.{part}")
                check(same_bits(tensors[f"{module}.{part}"], answer[part]),
                      f"fp8 {part} of {module}, {dtype}, differs")
        check(set(tensors) == expected, f"fp8 tensors {sorted(set(tensors) ^ expected)}")
        manifest = json.loads((result / "vitrine_manifest.json").read_text())
        check(manifest["scheme"]["group_size"] == 0 and manifest["scheme"]["head_bits"] == 8,
              "fp8 manifest")


FAMILIES = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"]]
for expert in range(2):
    FAMILIES += [[f"mlp.experts.{expert}.gate_proj", f"mlp.experts.{expert}.up_proj"],
                 [f"mlp.experts.{expert}.down_proj"]]


def group_extremes(weight, group):
    blocks = weight.unflatten(1, (-1, group))
    return blocks.amin(dim=-1), blocks.amax(dim=-1)


def nvfp4_answer(weight, largest):
    scheme = QuantizationScheme(targets=["Linear"], weights=preset_name_to_scheme(
        "NVFP4A16", ["Linear"]).weights)
    factor = generate_gparam(-largest, largest)
    scale, _ = calculate_qparams(*group_extremes(weight, 16), scheme.weights, global_scale=factor)
    return NVFP4PackedCompressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_global_scale": factor}, scheme), scheme


def mxfp4_answer(weight):
    scheme = QuantizationScheme(targets=["Linear"], weights=preset_name_to_scheme(
        "MXFP4A16", ["Linear"]).weights)
    scale, _ = calculate_qparams(*group_extremes(weight, 32), scheme.weights)
    return MXFP4PackedCompressor.compress({"weight": weight, "weight_scale": scale}, scheme), scheme


def row_answer(weight):
    scheme = preset_name_to_scheme("W8A8", ["Linear"])
    scale, zero_point = calculate_qparams(weight.amin(dim=1, keepdim=True),
                                          weight.amax(dim=1, keepdim=True), scheme.weights)
    return NaiveQuantizationCompressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}, scheme), scheme


def test_small_floats(tool, work):
    """Floats of four bits, and integers with a scale a row: the library's own, to the bit."""
    for dtype in (torch.bfloat16, torch.float32):
        weights, others = linear_weights(dtype, 17)
        for weight in weights.values():
            weight[2] /= 1e30  # else all other groups of a matrix vanish beside it
            weight[3:6] = weight[3:6].double().mul(0).to(dtype)
        source = work / f"small-{dtype}"
        write_source(source, {name + ".weight": weight for name, weight in weights.items()} | others,
                     CONFIG)
        for scheme in ("nvfp4", "mxfp4", "int8-w8a8"):
            result = work / f"small-{dtype}-{scheme}"
            run_tool(tool, source, result, scheme, 32)
            config_json = json.loads((result / "config.json").read_text())
            config = QuantizationConfig.model_validate(config_json["quantization_config"])
            check("lm_head" in config.ignore, f"{scheme} leaves the head")
            with safe_open(result / "model.safetensors", framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            expected = set(others)
            for family in FAMILIES:
                largest = max(weights[PREFIX + name].abs().max() for name in family)
                for module in (PREFIX + name for name in family):
                    if scheme == "nvfp4":
                        answer, args = nvfp4_answer(weights[module], largest)
                    else:
                        answer, args = (mxfp4_answer if scheme == "mxfp4" else row_answer)(
                            weights[module])
                    found = scheme_of(config, module)
                    for field in ("num_bits", "type", "strategy", "symmetric", "scale_dtype"):
                        check(getattr(found.weights, field) == getattr(args.weights, field),
                              f"{scheme}: {field} of {module}")
                    check((found.input_activations is None) == (scheme != "int8-w8a8"),
                          f"{scheme}: activations")
                    for part, tensor in answer.items():
                        if not part.startswith("weight") or part.endswith("zero_point"):
                            continue
                        expected.add(f"{module}.{part}")
                        check(same_bits(tensors[f"{module}.{part}"], tensor),
                              f"{scheme} {part} of {module}, {dtype}, differs")
            check(set(tensors) == expected, f"{scheme} tensors {sorted(set(tensors) ^ expected)}")


def float8_blocks(weight, block):
    """As models are published: E4M3 and a scale for each block; and what they mean, in bfloat16."""
    rows, cols = (-(-size // block) for size in weight.shape)
    padded = torch.zeros(rows * block, cols * block)
    padded[: weight.shape[0], : weight.shape[1]] = weight.float()
    blocks = padded.view(rows, block, cols, block)
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / 448
    spread = scales[:, None, :, None].expand_as(blocks)
    values = (blocks / spread).to(torch.float8_e4m3fn)
    meant = (values.float() * spread).reshape(padded.shape)
    cut = (slice(weight.shape[0]), slice(weight.shape[1]))
    return values.reshape(padded.shape)[cut].contiguous(), scales, meant[cut].bfloat16()


def test_from_float8(tool, work):
    weights, others = linear_weights(torch.bfloat16, 13)
    others["lm_head.weight"] = hostile_rows(40, 256, torch.bfloat16,
                                            torch.Generator().manual_seed(3))
    stored, meant = dict(others), {}
    for module, weight in weights.items():
        values, scales, meant[module] = float8_blocks(weight.clamp(-100, 100), 128)
        stored[module + ".weight"] = values
        stored[module + ".weight_scale_inv"] = scales
        stored[module + ".input_scale"] = torch.ones(1)
    head = others.pop("lm_head.weight")
    source = work / "from-float8"
    write_source(source, stored, CONFIG | {
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})
    for bits, group_size in ((4, 32), (8, 64), (4, 128)):
        result = work / f"from-float8-{bits}-{group_size}"
        run_tool(tool, source, result, f"int{bits}", group_size)
        compare_folder(result, meant, others, bits, group_size, head)


def test_fused(tool, work):
    """A fused 3-D tensor gives what its experts, stored one by one, give."""
    weights, others = linear_weights(torch.bfloat16, 7)
    experts = {name: weight for name, weight in weights.items() if ".experts." in name}
    stored = {name + ".weight": weight for name, weight in weights.items() if name not in experts}
    gate_up = torch.stack([torch.cat([experts[f"{PREFIX}mlp.experts.{e}.gate_proj"],
                                      experts[f"{PREFIX}mlp.experts.{e}.up_proj"]])
                           for e in range(2)])
    down = torch.stack([experts[f"{PREFIX}mlp.experts.{e}.down_proj"] for e in range(2)])
    for form, (gate_up_name, down_name, parent) in FUSED_FORMS.items():
        source = work / f"fused-{form}"
        config = GRANITE_CONFIG if form == "granite" else CONFIG
        write_source(source, stored | others | {gate_up_name: gate_up, down_name: down}, config)
        result = work / f"fused-{form}-result"
        run_tool(tool, source, result, "int4", 32)
        renamed = {name.replace(PREFIX + "mlp.experts", parent + ".experts"): weight
                   for name, weight in weights.items()}
        compare_folder(result, renamed, others, 4, 32, others["model.embed_tokens.weight"])


def test_transformers(tool, work, data):
    """transformers loads our dense folders and computes what values times scales give."""
    from transformers import AutoModelForCausalLM
    for name, method in (("llama", "int4"), ("qwen3", "int4"), ("llama", "fp8")):
        source = data / "oracles" / name
        result = work / f"transformers-{name}-{method}"
        run_tool(tool, source, result, method, 32)
        tokens = torch.tensor([json.loads((source / "oracle.json").read_text())["tokens"]])
        plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        weights = load_file(source / "model.safetensors")
        for module_name, module in plain.named_modules():
            if isinstance(module, torch.nn.Linear):
                weight = weights[module_name + ".weight"]
                if method == "fp8":
                    module.weight.data = float_in_float(float_answer(weight)[0])
                    continue
                bits = 8 if module_name == "lm_head" else 4
                answer, _, scheme = library_answer(weight, bits, 32)
                module.weight.data = answer_in_float(answer, scheme).float()
        model = AutoModelForCausalLM.from_pretrained(result, dtype=torch.float32)
        with torch.no_grad():
            expected = plain(tokens).logits
            found = model(tokens).logits  # decompresses first
        worst = (found - expected).abs().max().item()
        # Float scales are rounded once more where weights are made from them in bfloat16.
        bound = 1e-5 if method == "int4" else 0.02
        check(worst < bound * expected.abs().max().item(), f"{name}: logits differ by {worst}")


def main():
    tool = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        test_schemes(tool, work)
        test_asymmetric(tool, work)
        test_float8(tool, work)
        test_small_floats(tool, work)
        test_from_float8(tool, work)
        test_fused(tool, work)
        if len(sys.argv) > 2:
            test_transformers(tool, work, pathlib.Path(sys.argv[2]))
    print(f"{checks} checks passed")


if __name__ == "__main__":
    main()
