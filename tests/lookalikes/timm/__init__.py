"""timm in small: see ../README.md."""
