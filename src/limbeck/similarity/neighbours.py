"""Find the teacher samples that a student sample is pulled to."""

from __future__ import annotations

import torch
from torch import Tensor

from ._moments import outside_autocast, working_dtype


@torch.no_grad()
@outside_autocast
def nearest_same_class(student: Tensor, teacher: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k nearest teacher samples of the same label for each student sample, nearest first.

    ``indices_i = argmin^k_{j: labels_j = labels_i} |student_i - teacher_j|``, Euclidean, j = i included. Equal
    distances go to the lower index, so the result does not depend on the device.

    Args:
        student, teacher: (B, D) each, of the same width.
        labels: (B,), compared for equality.
        k: clamped to B.

    Returns:
        indices (B, k) into the batch, and valid (B, k) bool: False where the class has fewer than k members
        (the index is then i itself, so that gathering stays in range).
    """
    if student.shape != teacher.shape or student.dim() != 2:
        raise ValueError(
            "Student and teacher must be (B, D) with the same width (project the student first); "
            f"got {tuple(student.shape)} and {tuple(teacher.shape)}."
        )
    if labels.shape != student.shape[:1]:
        raise ValueError(f"Need one label per sample, shape ({len(student)},); got {tuple(labels.shape)}.")
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}.")
    dtype = working_dtype(student, teacher, small=True)
    # Differences, not Gram matrices: duplicates tie exactly and near-duplicates keep their order.
    distances = torch.cdist(student.to(dtype), teacher.to(dtype), compute_mode="donot_use_mm_for_euclid_dist")
    same = labels[:, None] == labels
    indices = torch.where(same, distances, torch.inf).sort(dim=-1, stable=True).indices[:, :k]
    valid = same.gather(-1, indices)
    own = torch.arange(len(labels), device=labels.device)[:, None]
    return torch.where(valid, indices, own), valid
