"""What every server of ours needs: who may ask, one network pass at a time, a socket."""
