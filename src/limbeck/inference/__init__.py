"""Run trained models: logits, scores, predictions."""
