"""One identity of the weights, whatever their layout: a tree of hashes over tiles that follow from shape and element size alone."""
