"""Algorithm 1, in reading order: request, plan, collect, elbo, calibrate, heatmaps, result."""
