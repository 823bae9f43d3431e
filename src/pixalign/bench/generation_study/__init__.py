"""Is every object of the prompt there? Generation where the truth can be seen."""
