from albumentations.pytorch.transforms import ToTensorV2
