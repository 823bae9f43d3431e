"""Prompts, where words stand in them, entities, weights, and two prompts side by side."""
