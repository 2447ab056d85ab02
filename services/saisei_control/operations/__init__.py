"""Operations: the executor that carries accepted mutations out, over restarts."""
