"""`make readers`: the support of other readers for deltasmelt's tables, with every value compared."""
