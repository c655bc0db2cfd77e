"""Authentication and authorization: SASL, tokens, certificate names, ACLs. Pure, except for one download."""
