"""Figures that anyone can repeat: `make bench`. Raw samples go to bench/samples, tables are generated from them."""
