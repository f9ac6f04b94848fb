"""Experiments: points that are computed once and kept, claims that are checked, and their pages.

`Study`, `Point`, `Claim` and `Results` are what a study is made of; `run` and `stored` compute and
read one. Sweeps, results that notebooks show, tables and figures have a module each; matplotlib is
imported where something is drawn.
"""
