"""Write a module as a user would who has a kind of model that neither transformers nor limbeck knows."""

from __future__ import annotations

from pathlib import Path

# one module for queries, keys and values, each head's three parts together, and a norm behind the last block
_CODE = """
import limbeck
import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput


class OwnConfig(PreTrainedConfig):
    model_type = "{kind}"
    vocab_size: int = 120
    hidden_size: int = 32
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    max_position_embeddings: int = 64
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = None


class OwnBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.norm, self.mix, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rest = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, hidden, mask):
        mixed = self.mix(self.norm(hidden)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = mixed.chunk(3, dim=-1)
        found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        hidden = hidden + self.out(found.transpose(1, 2).flatten(-2))
        return hidden + self.rest(hidden)


class OwnModel(PreTrainedModel):
    config: OwnConfig
    base_model_prefix = "stem"

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.stack = nn.ModuleList([OwnBlock(config) for _ in range(config.num_hidden_layers)])
        self.last = nn.LayerNorm(config.hidden_size)
        self.post_init()

    def forward(self, input_ids, attention_mask, **_):
        hidden = self.embed_tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.stack:
            hidden = block(hidden, attention_mask.bool()[:, None, None, :])
        return BaseModelOutput(last_hidden_state=self.last(hidden))


class OwnForSequenceClassification(PreTrainedModel):
    config: OwnConfig
    base_model_prefix = "stem"

    def __init__(self, config):
        super().__init__(config)
        self.stem = OwnModel(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, input_ids, attention_mask, **_):
        hidden = self.stem(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return SequenceClassifierOutput(logits=self.classifier(hidden[:, 0]))


AutoConfig.register("{kind}", OwnConfig)
AutoModel.register(OwnConfig, OwnModel)
AutoModelForSequenceClassification.register(OwnConfig, OwnForSequenceClassification)
limbeck.register_family(
    "{kind}", limbeck.Family(blocks="stack", queries="mix", keys="mix", values="mix", fused="heads", raw_scores=True)
)
"""


def write_own_family(folder: Path, module: str, kind: str) -> Path:
    """Write ``module``.py, which registers classes and a family for models of the type ``kind``."""
    file = folder / f"{module}.py"
    file.write_text(_CODE.replace("{kind}", kind))
    return file
