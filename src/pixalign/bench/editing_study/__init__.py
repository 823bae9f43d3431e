"""Did the object change, and only there? Editing where the truth is known."""
