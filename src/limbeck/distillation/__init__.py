"""Combine a student, a teacher and an objective into something that can be trained."""
