"""Operations of torch without a dim flattened, so that splits survive."""
