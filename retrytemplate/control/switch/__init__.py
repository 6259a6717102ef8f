"""The kill switch: work that an operator stops, and what it takes to let it go on."""
