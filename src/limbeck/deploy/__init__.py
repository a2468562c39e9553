"""Bring a trained model into service: export it, check it, measure it, write its card."""
