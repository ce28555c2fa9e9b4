"""Figures of a store on this machine: `everbeat bench`.

Each measure works on a store of its own that is made for it and removed after it, with real workers around it. The same
measures are behind `make bench`, which sets peers and the limits of the machine beside them.
"""
