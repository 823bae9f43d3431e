"""The page in a browser on which a person sees where a model puts each word."""
