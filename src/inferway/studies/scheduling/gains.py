"""Accuracies that rewards count in training: other data than the evaluation's (Sec. 5.1.1).

The paper evaluates on ImageNet's validation set and lets the reward of eq. 2 count accuracies on
ImageNet-V2, "matched frequency" (Recht et al., ICML 2019), without printing them. These are top-1
of timm's ``results-imagenetv2-matched-frequency.csv``: of `efficientnet_b0.ra_in1k` (0.77698 on
ImageNet, the paper's 77.69 %) and `pnasnet5large.tf_in1k` (0.82814; 0.82782 in timm's earlier
tables, the paper's 82.78 %). No other EfficientNet-B0 there has the paper's accuracy.
"""

LIGHT = 0.6615
"""EfficientNet-B0, 224 x 224, crop 0.875."""

HEAVY = 0.7256
"""PNASNet-5-Large, 331 x 331, crop 0.911."""
