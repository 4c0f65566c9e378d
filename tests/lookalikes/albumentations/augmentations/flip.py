from albumentations.core.transforms_interface import BasicTransform


class HorizontalFlip(BasicTransform):
    pass
