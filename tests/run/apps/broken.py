"""An application that can not be imported."""

raise ValueError("no configuration here")
