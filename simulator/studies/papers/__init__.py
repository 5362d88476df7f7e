"""The four papers, claim by claim: `reproduce.reproduce`, which says how claims are written."""
