# SPDX-License-Identifier: Apache-2.0
import numpy as np
import torch


class ToImage(torch.nn.Module):
    def forward(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)
