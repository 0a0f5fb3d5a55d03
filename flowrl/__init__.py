"""flowrl: reward tuning for diffusion and flow-matching generators."""
