"""A wiki: articles about a made-up world, with links, categories, histories and editing."""
