"""Compare hidden representations by pure tensor functions that need torch and nothing else.

Student first, teacher second; padding never leaks; statistics in float32 or float64 under any autocast; where
a statistic does not exist the result is a finite 0 with zero gradient.
"""

from ._moments import gradients_to_teacher, masked_difference, squared_norm, teacher_side, zero_masked
from .attention import attention_kl, attention_loss, attention_mse, attention_scores, split_heads
from .cka import MinibatchCKA, cka, cka_with_validity
from .distances import rkd_angle, rkd_distance
from .grams import cckd_distance, spkd_distance, unit
from .kmeans import KMeans, kmeans
from .neighbours import nearest_same_class
from .relations import (
    pearson,
    pearson_loss,
    relation_kl,
    relation_losses,
    relation_mse,
    sample_relation_loss,
    sample_relations,
    token_relation_loss,
    token_relations,
)
from .shape import shape_distance

__all__ = [
    "KMeans",
    "MinibatchCKA",
    "attention_kl",
    "attention_loss",
    "attention_mse",
    "attention_scores",
    "cckd_distance",
    "cka",
    "cka_with_validity",
    "gradients_to_teacher",
    "kmeans",
    "masked_difference",
    "nearest_same_class",
    "pearson",
    "pearson_loss",
    "relation_kl",
    "relation_losses",
    "relation_mse",
    "rkd_angle",
    "rkd_distance",
    "sample_relation_loss",
    "sample_relations",
    "shape_distance",
    "spkd_distance",
    "split_heads",
    "squared_norm",
    "teacher_side",
    "token_relation_loss",
    "token_relations",
    "unit",
    "zero_masked",
]
