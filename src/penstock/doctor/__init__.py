"""`penstock doctor`: rules are pure functions of facts, and facts are gathered apart from them."""
