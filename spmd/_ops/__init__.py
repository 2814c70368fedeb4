"""Operations that torch lacks: random bits by counting, sums inside hosts first."""
