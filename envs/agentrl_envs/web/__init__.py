"""Web pages as environments: a real browser, pages that the host serves, checkers that look."""
