"""A traced step as data: its module, its values, and the file that holds them."""
