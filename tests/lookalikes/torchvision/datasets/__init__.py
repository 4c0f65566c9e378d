from torchvision.datasets.folder import ImageFolder
