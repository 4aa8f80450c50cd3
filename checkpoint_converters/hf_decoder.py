"""Tensor names that Hugging Face's Llama-like decoders share; families differ in flags only."""

from __future__ import annotations

from checkpoint_converters.names import NameMap, Rule

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_L = "model.layers.{i}."
_A = _L + "self_attn."
_M = _L + "mlp."

HF_DECODER = NameMap(
    rules=(
        Rule(EMBEDDING, "embed.weight", "V H"),
        Rule(_L + "input_layernorm.weight", "layers.{i}.input_norm.weight", "H"),
        Rule(_A + "q_proj.weight", "layers.{i}.attn.q.weight", "Q H"),
        Rule(_A + "q_proj.bias", "layers.{i}.attn.q.bias", "Q", "attention_bias"),
        Rule(_A + "k_proj.weight", "layers.{i}.attn.k.weight", "KV H"),
        Rule(_A + "k_proj.bias", "layers.{i}.attn.k.bias", "KV", "attention_bias"),
        Rule(_A + "v_proj.weight", "layers.{i}.attn.v.weight", "KV H"),
        Rule(_A + "v_proj.bias", "layers.{i}.attn.v.bias", "KV", "attention_bias"),
        Rule(_A + "o_proj.weight", "layers.{i}.attn.o.weight", "H Q"),
        Rule(_A + "o_proj.bias", "layers.{i}.attn.o.bias", "H", "attention_output_bias"),
        Rule(_A + "q_norm.weight", "layers.{i}.attn.q_norm.weight", "D", "qk_norm"),
        Rule(_A + "k_norm.weight", "layers.{i}.attn.k_norm.weight", "D", "qk_norm"),
        Rule(_L + "post_attention_layernorm.weight", "layers.{i}.post_attention_norm.weight", "H"),
        Rule(_M + "gate_proj.weight", "layers.{i}.mlp.gate.weight", "I H"),
        Rule(_M + "gate_proj.bias", "layers.{i}.mlp.gate.bias", "I", "mlp_bias"),
        Rule(_M + "up_proj.weight", "layers.{i}.mlp.up.weight", "I H"),
        Rule(_M + "up_proj.bias", "layers.{i}.mlp.up.bias", "I", "mlp_bias"),
        Rule(_M + "down_proj.weight", "layers.{i}.mlp.down.weight", "H I"),
        Rule(_M + "down_proj.bias", "layers.{i}.mlp.down.bias", "H", "mlp_bias"),
        Rule("model.norm.weight", "norm.weight", "H"),
        Rule(HEAD, "head.weight", "V H", "untied"),
    ),
    # Old checkpoints saved the rotary frequencies, which the config determines.
    ignored=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
)
