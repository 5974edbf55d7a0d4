"""How a pipeline stands, as values; printing is the commands'.

In reading order: `check`, `status`, `standing`.
"""
