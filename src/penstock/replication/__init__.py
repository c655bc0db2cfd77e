"""The rules of leaders and followers, as pure functions."""
