"""Load models, build students from teachers, and capture what models compute."""
