"""Scenes of known objects: exact masks, captions and class frequencies.

``atlas`` holds the drawn classes, ``sample`` draws scenes by seed, ``draw`` those on which results
are reported, ``render`` paints them, ``stress`` turns one dial of a base scene and ``write`` makes
files for people.
"""
