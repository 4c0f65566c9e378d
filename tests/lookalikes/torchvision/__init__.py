"""torchvision in small: see ../README.md."""
