"""Noise schedules, training objectives, timesteps, and sampling."""
