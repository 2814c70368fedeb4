"""A schedule for people: text for a terminal and a page of HTML."""
