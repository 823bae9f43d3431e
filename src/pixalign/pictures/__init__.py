"""Reading, drawing and saving pictures."""
