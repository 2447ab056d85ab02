"""Resource records: acceptance of mutations, references, admission, reads."""
