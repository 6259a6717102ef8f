"""Where the items of a step come from: files, queries, iterables."""
