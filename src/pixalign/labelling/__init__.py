"""From a folder of pictures to annotations."""
