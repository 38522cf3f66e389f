# SPDX-License-Identifier: Apache-2.0
"""The layers and the metadata of the architectures that make_moe_gguf.py writes.

Names and extents are those of llama.cpp's converter. Where a published model has a width that no
option gives, it follows from the others by that model's ratios, so small files keep its form.
"""

import dataclasses

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


def has_finer_types(layer, layers):
    """The first and the last eighth, and each third between: what mixes named _M do."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def feed_forward(block, ending, width, hidden, kind, finer=None):
    """The three matrices of a gated feed-forward part."""
    yield f"{block}ffn_gate{ending}.weight", (width, hidden), kind
    yield f"{block}ffn_up{ending}.weight", (width, hidden), kind
    yield f"{block}ffn_down{ending}.weight", (hidden, width), finer or kind


@dataclasses.dataclass
class Shape:
    """A Qwen3 or OLMoE model; other architectures are derived from it."""
    architecture: str
    hidden: int
    layers: int
    experts: int
    top_k: int
    expert_width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_base: float
    pre_tokenizer: str

    epsilon = 1e-6
    head_multiple = 2  # of head_dim
    fewest_layers = 1  # that have one of each kind

    @property
    def norm_widths(self):
        """Widths of the query's and the key's norm: a head's, or all heads' together."""
        if self.architecture == "olmoe":
            return self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.head_dim, self.head_dim

    @property
    def kept_widths(self):
        """Widths of a key, of a value, and of what RoPE turns."""
        return self.head_dim, self.head_dim, self.head_dim

    @property
    def kept_heads(self):
        """How many keys and values a position has: a number, or one for each layer."""
        return self.kv_heads

    @property
    def dense_width(self):
        """What the file calls its feed-forward length, if it says one."""
        return self.expert_width

    def mistake(self):
        """What no file of the architecture can have, in words."""
        if self.layers < self.fewest_layers:
            return f"expected --layers from {self.fewest_layers} on"
        if self.architecture == "olmoe" and self.heads * self.head_dim != self.hidden:
            return "an olmoe model's --heads times --head-dim is its --hidden"
        return None

    def tensors(self, mix, head):
        """(name, extents, type) in the file's order; None: float32 around 1, a norm."""
        yield "token_embd.weight", (self.vocabulary, self.hidden), mix.body
        for layer in range(self.layers):
            finer = mix.finer if has_finer_types(layer, self.layers) else None
            yield from self.layer_tensors(layer, f"blk.{layer}.", mix, finer)
        yield "output_norm.weight", (self.hidden,), None
        yield "output.weight", (self.vocabulary, self.hidden), head

    def layer_tensors(self, _, block, mix, finer):
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        query_norm, key_norm = self.norm_widths
        yield block + "attn_norm.weight", (self.hidden,), None
        yield block + "attn_q.weight", (query, self.hidden), mix.body
        yield block + "attn_k.weight", (key, self.hidden), mix.body
        yield block + "attn_v.weight", (key, self.hidden), finer or mix.body
        yield block + "attn_output.weight", (self.hidden, query), mix.body
        yield block + "attn_q_norm.weight", (query_norm,), None
        yield block + "attn_k_norm.weight", (key_norm,), None
        yield block + "ffn_norm.weight", (self.hidden,), None
        yield from self.routed_experts(block, mix, finer)

    def routed_experts(self, block, mix, finer):
        yield block + "ffn_gate_inp.weight", (self.experts, self.hidden), Type.F32
        wide = (self.experts, self.expert_width, self.hidden)
        yield block + "ffn_gate_exps.weight", wide, mix.experts
        yield block + "ffn_up_exps.weight", wide, mix.experts
        yield (block + "ffn_down_exps.weight", (self.experts, self.hidden, self.expert_width),
               finer or mix.experts)

    def add_metadata(self, writer):
        key_width, value_width, turned_width = self.kept_widths
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.layers)
        if self.dense_width is not None:
            writer.add_feed_forward_length(self.dense_width)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kept_heads)
        writer.add_key_length(key_width)
        writer.add_value_length(value_width)
        writer.add_rope_dimension_count(turned_width)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_layer_norm_rms_eps(self.epsilon)
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(self.top_k)
        self.add_own_metadata(writer)

    def add_own_metadata(self, writer):
        if self.architecture != "olmoe":
            writer.add_expert_feed_forward_length(self.expert_width)

    def deviation(self, name, columns):
        """Deviation of a matrix's weights. The embedding starts the residual stream; router and head
        choose, so theirs are spread wider."""
        if name.startswith("token_embd"):
            return 1.0
        return (2 if "ffn_gate_inp" in name or name.startswith("output.") else 1) / columns**0.5

    def own_values(self, random, name, extents):
        """Values of a tensor that is neither a matrix nor a norm; None for the others."""
        if name.endswith((".bias", "attn_sinks.weight")):
            return 0.1 * random.standard_normal(extents, np.float32)
        return None


class GptOss(Shape):
    """Biases everywhere, sinks, a norm of another name."""

    def layer_tensors(self, _, block, mix, finer):
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield block + "attn_norm.weight", (self.hidden,), None
        for name, rows, columns in (("q", query, self.hidden), ("k", key, self.hidden),
                                    ("v", key, self.hidden), ("output", self.hidden, query)):
            yield f"{block}attn_{name}.weight", (rows, columns), mix.body
            yield f"{block}attn_{name}.bias", (rows,), Type.F32
        yield block + "attn_sinks.weight", (self.heads,), Type.F32
        yield block + "post_attention_norm.weight", (self.hidden,), None
        yield block + "ffn_gate_inp.weight", (self.experts, self.hidden), Type.F32
        yield block + "ffn_gate_inp.bias", (self.experts,), Type.F32
        for name, rows, columns in (("gate", self.expert_width, self.hidden),
                                    ("up", self.expert_width, self.hidden),
                                    ("down", self.hidden, self.expert_width)):
            yield f"{block}ffn_{name}_exps.weight", (self.experts, rows, columns), mix.experts
            yield f"{block}ffn_{name}_exps.bias", (self.experts, rows), Type.F32

    def add_own_metadata(self, writer):
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
        super().add_own_metadata(writer)


class GlmFlash(Shape):
    """Latent attention: a position keeps one key for all heads, most of which is its value, too.
    The first layer is dense; the others have a shared expert beside those that are chosen."""
    epsilon = 1e-5
    head_multiple = 8
    fewest_layers = 2

    @property
    def query_latent(self):
        return 3 * self.head_dim

    @property
    def kept_widths(self):
        latent, turned = 2 * self.head_dim, self.head_dim // 4
        return latent + turned, latent, turned

    @property
    def kept_heads(self):
        return 1

    @property
    def dense_width(self):
        return 5 * self.hidden

    def mistake(self):
        if self.layers in (26, 27):
            return ("llama.cpp takes deepseek2 files of 26 and 27 layers for models without a "
                    "query latent; expected another --layers")
        return super().mistake()

    def layer_tensors(self, layer, block, mix, finer):
        key, latent, turned = self.kept_widths
        yield block + "attn_norm.weight", (self.hidden,), None
        yield block + "attn_q_a.weight", (self.query_latent, self.hidden), mix.body
        yield block + "attn_q_a_norm.weight", (self.query_latent,), None
        yield block + "attn_q_b.weight", (self.heads * self.head_dim, self.query_latent), mix.body
        yield block + "attn_kv_a_mqa.weight", (key, self.hidden), mix.body
        yield block + "attn_kv_a_norm.weight", (latent,), None
        yield block + "attn_k_b.weight", (self.heads, latent, self.head_dim - turned), mix.body
        yield block + "attn_v_b.weight", (self.heads, self.head_dim, latent), mix.body
        yield block + "attn_output.weight", (self.hidden, self.heads * self.head_dim), mix.body
        yield block + "ffn_norm.weight", (self.hidden,), None
        if layer == 0:
            yield from feed_forward(block, "", self.dense_width, self.hidden, mix.body, finer)
            return
        yield from self.routed_experts(block, mix, finer)
        yield block + "exp_probs_b.bias", (self.experts,), Type.F32
        yield from feed_forward(block, "_shexp", self.expert_width, self.hidden, mix.body, finer)

    def add_own_metadata(self, writer):
        _, latent, _ = self.kept_widths
        super().add_own_metadata(writer)
        writer.add_leading_dense_block_count(1)
        writer.add_vocab_size(self.vocabulary)
        writer.add_q_lora_rank(self.query_latent)
        writer.add_kv_lora_rank(latent)
        writer.add_key_length_mla(self.head_dim)
        writer.add_value_length_mla(self.head_dim)
        writer.add_expert_group_count(1)
        writer.add_expert_group_used_count(1)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(1.8)
        writer.add_expert_weights_norm(True)
        # Published files leave it out: llama.cpp knows them by 47 layers and the vocabulary.
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


class Qwen35(Shape):
    """Three layers of four keep a state in place of keys and values (Gated DeltaNet): as many key
    heads as the others have query heads and twice as many value heads, of half the width. The
    fourth one's queries have a gate each. All layers have a shared expert with a gate."""
    head_multiple = 8
    fewest_layers = 2
    taps = 4  # of the convolution

    @property
    def interval(self):
        """One layer of so many has keys and values, in small files, too."""
        return min(4, self.layers)

    @property
    def kept_widths(self):
        return self.head_dim, self.head_dim, self.head_dim // 4

    @property
    def dense_width(self):
        return None

    def layer_tensors(self, layer, block, mix, finer):
        yield block + "attn_norm.weight", (self.hidden,), None
        if (layer + 1) % self.interval == 0:
            yield from self.attention(block, mix, finer)
        else:
            yield from self.delta_net(block, mix)
        yield block + "post_attention_norm.weight", (self.hidden,), None
        yield from self.routed_experts(block, mix, finer)
        yield block + "ffn_gate_inp_shexp.weight", (1, self.hidden), Type.F32
        yield from feed_forward(block, "_shexp", self.expert_width, self.hidden, mix.body, finer)

    def attention(self, block, mix, finer):
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield block + "attn_q.weight", (2 * query, self.hidden), mix.body
        yield block + "attn_k.weight", (key, self.hidden), mix.body
        yield block + "attn_v.weight", (key, self.hidden), finer or mix.body
        yield block + "attn_output.weight", (self.hidden, query), mix.body
        yield block + "attn_q_norm.weight", (self.head_dim,), None
        yield block + "attn_k_norm.weight", (self.head_dim,), None

    def delta_net(self, block, mix):
        width, value_heads = self.head_dim // 2, 2 * self.heads
        keys, values = self.heads * width, value_heads * width
        yield block + "attn_qkv.weight", (2 * keys + values, self.hidden), mix.body
        yield block + "attn_gate.weight", (values, self.hidden), mix.body
        yield block + "ssm_conv1d.weight", (2 * keys + values, self.taps), Type.F32
        yield block + "ssm_dt.bias", (value_heads,), Type.F32
        yield block + "ssm_a", (value_heads,), Type.F32
        yield block + "ssm_beta.weight", (value_heads, self.hidden), mix.body
        yield block + "ssm_alpha.weight", (value_heads, self.hidden), mix.body
        yield block + "ssm_norm.weight", (width,), None
        yield block + "ssm_out.weight", (self.hidden, values), mix.body

    def add_own_metadata(self, writer):
        pairs = self.head_dim // 8
        super().add_own_metadata(writer)
        writer.add_expert_shared_feed_forward_length(self.expert_width)
        writer.add_rope_dimension_sections([(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])
        writer.add_ssm_conv_kernel(self.taps)
        writer.add_ssm_state_size(self.head_dim // 2)
        writer.add_ssm_group_count(self.heads)
        writer.add_ssm_time_step_rank(2 * self.heads)
        writer.add_ssm_inner_size(self.heads * self.head_dim)
        writer.add_full_attention_interval(self.interval)

    def own_values(self, random, name, extents):
        if name.endswith("ssm_a"):
            return -random.uniform(1, 16, extents)
        if name.endswith("ssm_dt.bias"):
            # Steps of 0.001 to 0.1, before a token makes its own of them: states that last.
            return np.log(np.expm1(np.exp(random.uniform(np.log(0.001), np.log(0.1), extents))))
        return super().own_values(random, name, extents)


class Gemma4(Shape):
    """Five layers slide, the sixth and the last do not: those have wider heads, fewer of which are
    kept, and values that are their keys. A dense part stands beside the experts, and the embedding
    is the head, too."""
    head_multiple = 8
    fewest_layers = 2

    def slides(self, layer):
        return (layer + 1) % 6 != 0 and layer + 1 != self.layers

    @property
    def kept_widths(self):
        """Those of layers that do not slide."""
        return 2 * self.head_dim, 2 * self.head_dim, 2 * self.head_dim

    @property
    def kept_heads(self):
        fewer = self.kv_heads // 4 if self.kv_heads % 4 == 0 else 1
        return [self.kv_heads if self.slides(layer) else fewer for layer in range(self.layers)]

    @property
    def dense_width(self):
        return 3 * self.expert_width

    def tensors(self, mix, head):
        tensors = list(super().tensors(mix, head))
        name, extents, _ = tensors[0]
        yield name, extents, head
        yield "rope_freqs.weight", (self.head_dim,), Type.F32
        yield from tensors[1:-1]

    def layer_tensors(self, layer, block, mix, finer):
        slides = self.slides(layer)
        width = self.head_dim if slides else 2 * self.head_dim
        query, key = self.heads * width, self.kept_heads[layer] * width
        yield block + "attn_norm.weight", (self.hidden,), None
        yield block + "attn_q.weight", (query, self.hidden), mix.body
        yield block + "attn_k.weight", (key, self.hidden), mix.body
        if slides:
            yield block + "attn_v.weight", (key, self.hidden), finer or mix.body
        yield block + "attn_output.weight", (self.hidden, query), mix.body
        yield block + "attn_q_norm.weight", (width,), None
        yield block + "attn_k_norm.weight", (width,), None
        for name in ("post_attention_norm", "ffn_norm", "post_ffw_norm", "post_ffw_norm_1",
                     "pre_ffw_norm_2", "post_ffw_norm_2"):
            yield f"{block}{name}.weight", (self.hidden,), None
        yield block + "layer_output_scale.weight", (1,), Type.F32
        yield from feed_forward(block, "", self.dense_width, self.hidden, mix.body, finer)
        yield block + "ffn_gate_inp.weight", (self.experts, self.hidden), Type.F32
        yield block + "ffn_gate_inp.scale", (self.hidden,), Type.F32
        yield (block + "ffn_gate_up_exps.weight",
               (self.experts, 2 * self.expert_width, self.hidden), mix.experts)
        yield (block + "ffn_down_exps.weight", (self.experts, self.hidden, self.expert_width),
               finer or mix.experts)
        yield block + "ffn_down_exps.scale", (self.experts,), None

    def add_own_metadata(self, writer):
        super().add_own_metadata(writer)
        writer.add_sliding_window(1024)
        writer.add_sliding_window_pattern([self.slides(layer) for layer in range(self.layers)])
        writer.add_key_length_swa(self.head_dim)
        writer.add_value_length_swa(self.head_dim)
        writer.add_rope_dimension_count_swa(self.head_dim)
        writer.add_rope_freq_base_swa(10000.0)
        writer.add_final_logit_softcapping(30.0)
        writer.add_shared_kv_layers(0)
        writer.add_embedding_length_per_layer_input(0)

    def deviation(self, name, columns):
        # That is the head, too; the model multiplies what it reads there by sqrt(columns).
        return super().deviation("output." if name.startswith("token_embd") else name, columns)

    def own_values(self, random, name, extents):
        if name == "rope_freqs.weight":
            return np.where(np.arange(extents[0]) < extents[0] // 4, 1, 1e30)
        if name.endswith("layer_output_scale.weight"):
            return np.ones(extents)
        around_one = 1 + 0.1 * random.standard_normal(extents[0])
        if name.endswith("ffn_gate_inp.scale"):
            return around_one * extents[0]**0.5  # the model divides by as much
        if name.endswith("attn_k_norm.weight"):
            return around_one / extents[0]**0.5  # the model's attention does not
        if name == "output_norm.weight":
            # Signs, for else the head would choose each time the token that the embedding read.
            return around_one * random.choice([-1, 1], extents)
        return None
