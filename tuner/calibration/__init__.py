"""Measures the ceilings of this machine through llama.cpp itself, and keeps them."""
