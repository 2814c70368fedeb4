"""What a program is compiled for: chips, links, and the text that names a target."""
