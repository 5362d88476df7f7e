"""The four papers, claim by claim: `paceline reproduce`; `reading` says how claims are written."""
