"""The dimensions of published language models, without weights; ``ptxkit fuse --model`` and the grid of shapes use them.

They are those of the published configurations: BERT (Devlin et al., arXiv 1810.04805), GPT-2 (Radford et al., 2019), OPT-13B
(arXiv 2205.01068), Llama 3 8B and 70B (arXiv 2407.21783), Qwen2.5 7B (arXiv 2412.15115), Gemma 2 9B (arXiv 2408.00118),
Mixtral 8x7B (arXiv 2401.04088), DeepSeek-V3 (arXiv 2412.19437; its latent attention is shown as ordinary attention with 128
heads of 128 elements).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """The dimensions of a transformer.

    Attributes:
        hidden: elements of a token. intermediate: of the feed-forward network, or of an expert.
        heads, kv_heads: of attention. d: elements of a head.
        layers: how many. gated: a gated network (SwiGLU, GeGLU) instead of GELU or ReLU.
        vocabulary: tokens that the model knows.
        activation: of a network that is not gated.
        experts, active: of a mixture of experts, and how many each token takes; 0 without.
        norm: its kind. bias: whether the linear layers have biases.
        shared: width of a feed-forward network that all tokens take besides their experts; 0 without.
        sigmoid: whether experts are scored by the sigmoid of their logits instead of the softmax.
        causal: whether a token sees only itself and earlier ones: of decoders.
    """

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    d: int
    layers: int
    gated: bool
    norm: str
    bias: bool
    vocabulary: int
    activation: str = "gelu"
    experts: int = 0
    active: int = 0
    shared: int = 0
    causal: bool = True
    sigmoid: bool = False


DIMENSIONS: dict[str, Model] = {
    "bert-base": Model(768, 3072, 12, 12, 64, 12, False, "layernorm", True, 30522, causal=False),
    "bert-large": Model(1024, 4096, 16, 16, 64, 24, False, "layernorm", True, 30522, causal=False),
    "gpt2": Model(768, 3072, 12, 12, 64, 12, False, "layernorm", True, 50257),
    "gpt2-xl": Model(1600, 6400, 25, 25, 64, 48, False, "layernorm", True, 50257),
    "opt-13b": Model(5120, 20480, 40, 40, 128, 40, False, "layernorm", True, 50272, "relu"),
    "llama3-8b": Model(4096, 14336, 32, 8, 128, 32, True, "rmsnorm", False, 128256),
    "llama3-70b": Model(8192, 28672, 64, 8, 128, 80, True, "rmsnorm", False, 128256),
    "qwen2.5-7b": Model(3584, 18944, 28, 4, 128, 28, True, "rmsnorm", False, 152064),
    "gemma2-9b": Model(3584, 14336, 16, 8, 256, 42, True, "rmsnorm", False, 256000),
    "mixtral-8x7b": Model(4096, 14336, 32, 8, 128, 32, True, "rmsnorm", False, 32000, experts=8, active=2),
    "deepseek-v3": Model(
        7168, 2048, 128, 128, 128, 58, True, "rmsnorm", False, 129280, experts=256, active=8, shared=2048, sigmoid=True
    ),
}
"""Name -> dimensions. Layers of DeepSeek-V3 are those with a mixture of experts."""
