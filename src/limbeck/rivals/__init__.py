"""Fit the trivial models that a student must beat to be worth having: linear ones on TF-IDF and on frozen features."""
