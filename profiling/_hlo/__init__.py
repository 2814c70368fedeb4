"""HLO as data: text and protos to modules, and what a module says of itself."""
