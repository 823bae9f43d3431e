"""Algorithm 1, in reading order: plan, collect, elbo, scoring, calibrate, heatmaps, result."""
